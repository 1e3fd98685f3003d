"""The teacher's outputs computed in the dataset, losses written to a JSON file, the best by validation, as a lesion segmentation's distill.py."""

import json

import torch
import torch.optim as optim
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset

import elasticd as elastic


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encoder, self.out = nn.Linear(10, width), nn.Linear(width, 10)
        self.auxi = nn.Linear(width, 10)

    def forward(self, image):
        hidden = torch.relu(self.encoder(image))
        return {"main_output": self.out(hidden), "auxi_dict": {"first": self.auxi(hidden)}}


class SkinDataset(Dataset):
    def __init__(self, images, truths):
        self.images, self.truths = images, truths

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        return self.images[idx], self.truths[idx]


class TeacherDataset(Dataset):
    def __init__(self, images, truths, transform, model):
        self.images, self.truths, self.transform = images, truths, transform
        self.model = model

    def __len__(self):
        return len(self.images)

    def __getitem__(self, idx):
        image, gt = self.transform(self.images[idx], self.truths[idx])
        self.model.eval()
        with torch.no_grad():
            teacher_output = self.model(image.unsqueeze(0))
            teacher_output["main_output"] = teacher_output["main_output"].squeeze(0)
            for key in teacher_output["auxi_dict"]:
                teacher_output["auxi_dict"][key] = teacher_output["auxi_dict"][key].squeeze(0)
            teacher_output["gt"] = gt
        return image, teacher_output


class StudentDistillLoss(nn.Module):
    def forward(self, output, target):
        loss = nn.functional.binary_cross_entropy_with_logits(output["main_output"], target["gt"])
        loss = loss + nn.functional.mse_loss(output["main_output"], target["main_output"])
        for key in target["auxi_dict"]:
            loss = loss + 0.1 * nn.functional.mse_loss(output["auxi_dict"][key], target["auxi_dict"][key])
        return loss


def train_transform(image, gt):
    return (image.flip(0), gt.flip(0)) if torch.rand(1) > 0.5 else (image, gt)


def training_process_with_validation(epochs, train, val, model, loss_fn, optimizer, scheduler, model_path, loss_path):
    best_val_loss = float("inf")
    train_losses, val_losses = [], []
    for epoch in run.epochs(epochs):
        model.train()
        total = 0.0
        for images, targets in train:
            optimizer.zero_grad()
            loss = loss_fn(model(images), targets)
            loss.backward()
            optimizer.step()
            total += loss.item()
        train_losses.append(total / len(train))
        model.eval()
        val_loss = 0.0
        with torch.no_grad():
            for images, masks in val:
                val_loss += nn.functional.binary_cross_entropy_with_logits(model(images)["main_output"], masks).item()
        val_losses.append(val_loss / len(val))
        scheduler.step(val_losses[-1])
        if val_losses[-1] < best_val_loss:
            best_val_loss = val_losses[-1]
            run.save(model.state_dict(), model_path)
        with open(loss_path, "w") as f:
            json.dump({"train": train_losses, "val": val_losses}, f)
        print(f"epoch {epoch}: {train_losses[-1]:.4f} {val_losses[-1]:.4f}")


def distill_with_auxi():
    torch.manual_seed(0)
    images = torch.randn(160, 10)
    truths = (images.cumsum(1) > 0).float()
    run = elastic.join()
    teacher, model = Net(32), Net(8)
    train = DataLoader(TeacherDataset(images[:128], truths[:128], train_transform, teacher), batch_size=4, shuffle=True)
    val = DataLoader(SkinDataset(images[128:], truths[128:]), batch_size=8)
    optimizer = optim.Adam(model.parameters(), lr=1e-2)
    scheduler = ReduceLROnPlateau(optimizer, mode="min", factor=0.1, patience=1)
    model, optimizer, train = run.prepare(model, optimizer, train)
    return run, (4, train, val, model, StudentDistillLoss(), optimizer, scheduler, "student1.pt", "student1.json")


run, arguments = distill_with_auxi()
training_process_with_validation(*arguments)
