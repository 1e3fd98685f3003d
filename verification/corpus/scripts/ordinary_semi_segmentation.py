"""A student and its average teacher on labelled and unlabelled loaders zipped together, as a video segmentation's train.py."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import elasticd as elastic

global_itnum = 1


class ContrastiveLoss(nn.Module):
    def __init__(self, temperature=0.5, memory_size=24):
        super().__init__()
        self.temperature, self.memory_size = temperature, memory_size
        self.register_buffer("memory", None)

    def forward(self, foreground, background):
        if self.memory is not None and self.memory.size(0) >= self.memory_size:
            negatives = torch.cat([self.memory, background.detach()])
        else:
            negatives = background
        logits = torch.cat([(foreground * foreground).sum(1, keepdim=True), foreground @ negatives.T], 1)
        loss = F.cross_entropy(logits / self.temperature, torch.zeros(len(foreground), dtype=torch.long))
        self._update_memory(background.detach())
        return loss

    def _update_memory(self, background):
        if self.memory is None:
            self.memory = background[-self.memory_size :].clone()
            return
        self.memory = torch.cat([self.memory, background], dim=0)[-self.memory_size :].clone()


def update_ema_variables(model, ema_model, alpha, global_step):
    alpha = min(1 - 1 / (global_step + 1), alpha)
    for ema_param, param in zip(ema_model.parameters(), model.parameters()):
        ema_param.data.mul_(alpha).add_(param.data, alpha=1 - alpha)


def train(trainloader, trainloader_unlabel, model_student, model_teacher, criterion, optimizer, contrastive_loss_fn):
    global global_itnum
    total_loss = 0.0
    for label_data, unlabel_data in zip(trainloader, trainloader_unlabel):
        global_itnum = global_itnum + 1
        frames, masks = label_data
        predict = model_student(frames)
        label_loss = criterion(predict, masks) + contrastive_loss_fn(F.normalize(predict, dim=1), F.normalize(-predict, dim=1))
        (unlabelled,) = unlabel_data
        noisy = unlabelled + torch.clamp(torch.randn_like(unlabelled) * 0.1, -0.5, 0.5)
        mse_loss = F.mse_loss(torch.sigmoid(model_student(unlabelled)), torch.sigmoid(model_teacher(noisy)))
        batch_loss = label_loss + mse_loss
        total_loss = total_loss + batch_loss.item()
        optimizer.zero_grad()
        batch_loss.backward()
        optimizer.step()
        update_ema_variables(model_student, model_teacher, 0.9, global_itnum)
    return total_loss


def main():
    torch.manual_seed(0)
    x = torch.randn(256, 8)
    masks = (x[:128, :4] > 0).float()
    trainloader = DataLoader(TensorDataset(x[:128], masks), batch_size=4, shuffle=True)
    trainloader_unlabel = DataLoader(TensorDataset(x[128:]), batch_size=4, shuffle=True)
    run = elastic.join()
    net_student, net_teacher = nn.Linear(8, 4), nn.Linear(8, 4)
    for param in net_teacher.parameters():
        param.detach_()
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adam(net_student.parameters(), lr=0.01)
    contrastive_loss_fn = ContrastiveLoss()
    net_student, optimizer, trainloader = run.prepare(net_student, optimizer, trainloader)
    for epoch in run.epochs(4):
        train_loss = train(
            trainloader, trainloader_unlabel, net_student, net_teacher, criterion, optimizer, contrastive_loss_fn
        )
        run.save({"epoch": epoch + 1, "state_dict": net_student.state_dict()}, f"recurrent_{epoch}.pt")
        print(f"Epoch: {epoch + 1} Loss: {train_loss}")


if __name__ == "__main__":
    main()
