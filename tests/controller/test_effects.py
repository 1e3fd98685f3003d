"""Records of an event: of several changes of one key, the last."""

from __future__ import annotations

from elasticd.controller.events import Record, Warn
from elasticd.controller.state.effects import Effects


def test_the_last_change_of_a_key_is_recorded_whichever_it_is() -> None:
    effects = Effects()
    effects.put_encoded({"a": b"1", "b": b"2"})
    effects.delete("a", "c")
    effects.put_encoded({"c": b"3"})
    effects.act(Warn("something"))
    assert effects.take() == [Record((("b", b"2"), ("c", b"3")), ("a",)), Warn("something")]
    assert effects.take() == []
