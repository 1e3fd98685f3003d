"""`global_step` decides when to evaluate within an epoch, for ReduceLROnPlateau, under tqdm, as Pytorch-UNet's train.py."""

import logging

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, TensorDataset, random_split
from tqdm import tqdm

import elasticd as elastic


def dice_loss(probabilities, target):
    inter = 2 * (probabilities * target).sum()
    return 1 - (inter + 1e-6) / (probabilities.sum() + target.sum() + 1e-6)


@torch.inference_mode()
def evaluate(net, dataloader):
    net.eval()
    dice_score = 0
    for image, mask_true in tqdm(dataloader, total=len(dataloader), desc="Validation round", leave=False):
        mask_pred = (torch.sigmoid(net(image)) > 0.5).float()
        dice_score += 1 - dice_loss(mask_pred, mask_true)
    net.train()
    return dice_score / max(len(dataloader), 1)


def train_model(model, epochs=4, batch_size=4, learning_rate=1e-3, gradient_clipping=1.0):
    images = torch.randn(144, 1, 6, 6)
    dataset = TensorDataset(images, (F.avg_pool2d(images, 3, 1, 1) > 0).float())
    train_set, val_set = random_split(dataset, [128, 16], generator=torch.Generator().manual_seed(0))
    train_loader = DataLoader(train_set, shuffle=True, batch_size=batch_size)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, batch_size=batch_size)
    optimizer = optim.RMSprop(model.parameters(), lr=learning_rate, weight_decay=1e-8, momentum=0.9, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", patience=1)
    grad_scaler = torch.amp.GradScaler("cpu", enabled=False)
    criterion = nn.BCEWithLogitsLoss()
    global_step = 0
    model, optimizer, train_loader = run.prepare(model, optimizer, train_loader)

    for epoch in run.epochs(epochs):
        model.train()
        epoch_loss = 0
        with tqdm(total=128, desc=f"Epoch {epoch}/{epochs}", unit="img") as pbar:
            for batch in train_loader:
                images, true_masks = batch
                masks_pred = model(images)
                loss = criterion(masks_pred, true_masks)
                loss += dice_loss(torch.sigmoid(masks_pred), true_masks)

                optimizer.zero_grad(set_to_none=True)
                grad_scaler.scale(loss).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), gradient_clipping)
                grad_scaler.step(optimizer)
                grad_scaler.update()

                pbar.update(images.shape[0])
                global_step += 1
                epoch_loss += loss.item()
                pbar.set_postfix(**{"loss (batch)": loss.item()})

                division_step = 4
                if global_step % division_step == 0:
                    val_score = evaluate(model, val_loader)
                    scheduler.step(val_score)
                    logging.info(f"Validation Dice score: {val_score}")
        run.save(model.state_dict(), f"checkpoint_epoch{epoch}.pt")
        logging.info(f"Checkpoint {epoch} saved!")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(message)s")
    torch.manual_seed(0)
    run = elastic.join()
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 1, 3, padding=1))
    model = model.to(memory_format=torch.channels_last)
    train_model(model=model)
