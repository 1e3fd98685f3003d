"""A save in each batch whose loss is the least so far, the scheduler stepped at the epoch's beginning, as a YOLOv3's trainer.py."""

import torch
import torch.nn as nn
import torch.optim.lr_scheduler as lr_scheduler

import elasticd as elastic


class MyDataset(torch.utils.data.Dataset):
    def __init__(self):
        self.images = torch.randn(128, 1, 8, 8)
        self.targets = torch.rand(128, 4, 4, 7) * (torch.rand(128, 4, 4, 1) > 0.7)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return self.targets[i], self.images[i]


def loss_fn(output, target, alpha):
    output = output.permute(0, 2, 3, 1)
    mask_obj = target[..., 4] > 0
    mask_noobj = target[..., 4] == 0
    output_, target_ = output[mask_obj], target[mask_obj]
    output_noobj, target_noobj = output[mask_noobj], target[mask_noobj]
    loss_cls = cls_loss(torch.sigmoid(output_[:, 4]), (target_[:, 4] > 0).float())
    loss_xy = cls_loss(torch.sigmoid(output_[:, 0:2]), target_[:, 0:2])
    loss_wh = torch.mean((output_[:, 2:4] - target_[:, 2:4]) ** 2)
    loss_class = corr_loss(output_[:, 5:], target_[:, 5:].argmax(1))
    loss_noobj = cls_loss(torch.sigmoid(output_noobj[:, 4]), target_noobj[:, 4])
    return alpha * (loss_cls + loss_xy + loss_wh + loss_class) + (1 - alpha) * loss_noobj


corr_loss = nn.CrossEntropyLoss()
cls_loss = nn.BCELoss()

if __name__ == "__main__":
    torch.manual_seed(0)
    myDataset = MyDataset()
    train_loader = torch.utils.data.DataLoader(myDataset, batch_size=4, shuffle=True)
    run = elastic.join()
    net = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(0.1), nn.Conv2d(8, 7, 1))
    net.train()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=0.0005)
    scheduler = lr_scheduler.StepLR(opt, 2, gamma=0.8)
    net, opt, train_loader = run.prepare(net, opt, train_loader)
    loss_ = 10
    for ecoph in run.epochs(4):
        scheduler.step()
        for i, (target, img_data) in enumerate(train_loader):
            output = net(img_data)
            loss = loss_fn(output, target, 0.95)
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"ecoph:{ecoph}  {i}/{len(train_loader)}  loss:{loss.item()}  save_loss:{loss_}")
            if loss.item() <= loss_:
                run.save(net.state_dict(), "YOLO_net.pt")
                loss_ = loss.item()
    run.save(net.state_dict(), "last.pt")
