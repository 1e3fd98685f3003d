"""Do operators have the same bits on unlike processors under `determinism: heterogeneous`? (EasyScale 3.3, D2)"""
