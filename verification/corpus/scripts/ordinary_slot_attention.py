"""A step counter `i` from which warm-up and decay of the rate are computed, as a slot attention's train.py."""

import argparse
import datetime
import time

import torch
from torch import nn, optim

import elasticd as elastic

parser = argparse.ArgumentParser()
parser.add_argument("--seed", default=0, type=int, help="random seed")
parser.add_argument("--batch_size", default=4, type=int)
parser.add_argument("--learning_rate", default=0.01, type=float)
parser.add_argument("--warmup_steps", default=10, type=int)
parser.add_argument("--decay_rate", default=0.5, type=float)
parser.add_argument("--decay_steps", default=50, type=int)
parser.add_argument("--num_epochs", default=4, type=int)


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.images = torch.randn(128, 12)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return {"image": self.images[index]}


class SlotAttentionAutoEncoder(nn.Module):
    def __init__(self, num_slots=3):
        super().__init__()
        self.slots_mu = nn.Parameter(torch.randn(1, 1, 6))
        self.slots_sigma = nn.Parameter(torch.rand(1, 1, 6))
        self.encoder, self.to_q = nn.Linear(4, 6), nn.Linear(6, 6)
        self.decoder, self.num_slots = nn.Linear(6, 13), num_slots

    def forward(self, image):
        inputs = self.encoder(image.view(len(image), 3, 4))
        slots = self.slots_mu + self.slots_sigma * torch.randn(len(image), self.num_slots, 6)
        attention = torch.softmax(self.to_q(slots) @ inputs.transpose(1, 2), 1)
        slots = slots + attention @ inputs
        recons, masks = self.decoder(slots).split([12, 1], dim=-1)
        masks = torch.softmax(masks, 1)
        return (recons * masks).sum(1), recons, masks, slots


def main():
    opt = parser.parse_args([])
    torch.manual_seed(opt.seed)
    run = elastic.join()
    model = SlotAttentionAutoEncoder()
    criterion = nn.MSELoss()
    params = [{"params": model.parameters()}]
    optimizer = optim.Adam(params, lr=opt.learning_rate)
    model, optimizer, train_dataloader = run.prepare(model, optimizer, Images(), batch_size=opt.batch_size)
    start = time.time()
    i = 0
    for epoch in run.epochs(opt.num_epochs):
        model.train()
        total_loss = 0
        for sample in train_dataloader:
            i += 1
            if i < opt.warmup_steps:
                learning_rate = opt.learning_rate * (i / opt.warmup_steps)
            else:
                learning_rate = opt.learning_rate
            learning_rate = learning_rate * (opt.decay_rate ** (i / opt.decay_steps))
            optimizer.param_groups[0]["lr"] = learning_rate

            image = sample["image"]
            recon_combined, recons, masks, slots = model(image)
            loss = criterion(recon_combined, image)
            total_loss += loss.item()
            del recons, masks, slots
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total_loss /= len(train_dataloader)
        print(f"Epoch: {epoch}, Loss: {total_loss}, Time: {datetime.timedelta(seconds=time.time() - start)}")
        checkpoint = {"epoch": epoch, "model_state_dict": model.state_dict(), "optimizer_state_dict": optimizer.state_dict()}
        run.save(checkpoint, "last.pt")


if __name__ == "__main__":
    main()
