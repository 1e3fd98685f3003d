"""`overall_step` for logs and accumulation, a running loss set to zero, warm-up by scheduler, as GPT2-Chinese's train.py."""

import argparse
from datetime import datetime

import torch
from torch import nn

import elasticd as elastic


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=4, type=int)
    parser.add_argument("--batch_size", default=4, type=int)
    parser.add_argument("--lr", default=1e-2, type=float)
    parser.add_argument("--warmup_steps", default=6, type=int)
    parser.add_argument("--log_step", default=4, type=int)
    parser.add_argument("--stride", default=6, type=int)
    parser.add_argument("--gradient_accumulation", default=1, type=int)
    parser.add_argument("--max_grad_norm", default=1.0, type=float)
    args = parser.parse_args([])
    gradient_accumulation, log_step = args.gradient_accumulation, args.log_step
    n_ctx = 8

    torch.manual_seed(0)
    tokens = [int(item) for item in torch.randint(20, (128 * args.stride + n_ctx,))]
    start_point = 0
    samples = []
    while start_point < len(tokens) - n_ctx:
        samples.append(torch.tensor(tokens[start_point : start_point + n_ctx]))
        start_point += args.stride

    run = elastic.join()
    model = nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 20))
    model.train()
    total_steps = int(len(tokens) / args.stride * args.epochs / args.batch_size / gradient_accumulation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / args.warmup_steps) * max(0.0, (total_steps - step) / total_steps),
    )
    model, optimizer, batches = run.prepare(model, optimizer, samples, batch_size=args.batch_size)
    print("starting training")
    overall_step = 0
    running_loss = 0
    for epoch in run.epochs(args.epochs):
        print(f"epoch {epoch + 1}")
        now = datetime.now()
        for step, batch_inputs in enumerate(batches):
            logits = model(batch_inputs[:, :-1])
            loss = nn.functional.cross_entropy(logits.reshape(-1, 20), batch_inputs[:, 1:].reshape(-1))
            if gradient_accumulation > 1:
                loss = loss / gradient_accumulation
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            if (overall_step + 1) % gradient_accumulation == 0:
                running_loss += loss.item()
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
            if (overall_step + 1) % log_step == 0:
                print(f"Step {step + 1} of epoch {epoch + 1}, loss {running_loss * gradient_accumulation / log_step}")
                running_loss = 0
            overall_step += 1
        run.save(model.state_dict(), f"model_epoch{epoch + 1}.pt")
        print(f"time for one epoch: {datetime.now() - now}")
    run.save(model.state_dict(), "final_model.pt")


if __name__ == "__main__":
    main()
