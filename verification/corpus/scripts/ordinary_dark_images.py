"""Images cached in global lists and cropped in the loop body, an evaluation every so many steps, as Learning-to-See-in-the-Dark's trainer.py."""

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset

import elasticd as elastic

label_image = [None for _ in range(200)]
input_with_ratio = {"100": [None for _ in range(200)], "250": [None for _ in range(200)]}


def collate_fn(batch):
    return batch


class DataSetSID(Dataset):
    def __init__(self, start, size):
        self.items = [{"id": start + i, "ratio": (100, 250)[i % 2]} for i in range(size)]

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


class Saver:
    def __init__(self, model):
        self.model = model
        self.best = 0.0

    def save_model(self, performance):
        if performance > self.best:
            self.best = performance
            run.save(self.model.state_dict(), "best.pt")


class Trainer:
    def __init__(self):
        self.model = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(6, 1, 3, padding=1))
        self.saver = Saver(self.model)

    def load_data(self, item, transforms=None, fixed=False):
        image_id, ratio = item["id"], str(item["ratio"])
        if input_with_ratio[ratio][image_id] is None:
            noise = np.random.RandomState(image_id).rand(10, 10).astype(np.float32)
            input_with_ratio[ratio][image_id] = noise / item["ratio"] * 100
        if label_image[image_id] is None:
            label_image[image_id] = np.random.RandomState(image_id).rand(10, 10).astype(np.float32)
        rand_x = np.random.randint(0, 4)
        rand_y = np.random.randint(0, 4)
        if fixed:
            rand_x, rand_y = 2, 2
        input = input_with_ratio[ratio][image_id][rand_x : rand_x + 6, rand_y : rand_y + 6]
        label = label_image[image_id][rand_x : rand_x + 6, rand_y : rand_y + 6]
        for trans in transforms or ():
            input, label = trans(input, label)
        return torch.from_numpy(input.copy())[None, None], torch.from_numpy(label.copy())[None, None]

    def train(self):
        self.eval()
        loss_function = torch.nn.L1Loss()
        optimizer = optim.Adam(self.model.parameters(), lr=0.01)
        lr_scheduler = optim.lr_scheduler.StepLR(optimizer=optimizer, step_size=2, gamma=0.1)
        dataloader = DataLoader(DataSetSID(0, 32), collate_fn=collate_fn)

        def flip(input, label):
            return (input[::-1], label[::-1]) if np.random.rand() > 0.5 else (input, label)

        self.model, optimizer, dataloader = run.prepare(self.model, optimizer, dataloader)
        total_step = 4 * len(dataloader)
        completed_step = 0
        for epoch in run.epochs(4):
            for _, data in enumerate(dataloader):
                input, label = self.load_data(data[0], [flip])
                output = self.model(input)
                loss = loss_function(output, label)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                completed_step += 1
                if completed_step % 4 == 0 or completed_step == total_step:
                    print(f"[{100 * completed_step / total_step:.2f}%] epoch:{epoch} step:{completed_step} {loss.item()}")
                if completed_step % 8 == 0:
                    psnr = self.eval()
                    self.saver.save_model(psnr)
            lr_scheduler.step()

    def eval(self):
        dataloader = DataLoader(DataSetSID(100, 8), collate_fn=collate_fn)
        psnr = []
        with torch.no_grad():
            for _, data in enumerate(dataloader):
                input, labels = self.load_data(data[0], fixed=True)
                outputs = torch.clamp(self.model(input), 0, 1)
                psnr.append(-10 * torch.log10(((outputs - labels) ** 2).mean()).item())
        return sum(psnr) / len(psnr)


torch.manual_seed(0)
run = elastic.join()
trainer = Trainer()
trainer.train()
model = trainer.model
