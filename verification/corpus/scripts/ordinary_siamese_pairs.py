"""One long pass with `batch_id`, random pairs in the dataset, a test and a save every so many batches, as siamese-pytorch's train.py."""

import random
import time
from collections import deque

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import elasticd as elastic

show_every, save_every, test_every, max_iter = 4, 8, 8, 50000


class OmniglotTrain(Dataset):
    def __init__(self):
        self.datas = {label: torch.randn(6, 8) + label for label in range(5)}
        self.num_classes = 5

    def __len__(self):
        return 512

    def __getitem__(self, index):
        if index % 2 == 1:
            label = 1.0
            idx1 = random.randint(0, self.num_classes - 1)
            image1 = random.choice(self.datas[idx1])
            image2 = random.choice(self.datas[idx1])
        else:
            label = 0.0
            idx1 = random.randint(0, self.num_classes - 1)
            idx2 = random.randint(0, self.num_classes - 1)
            while idx1 == idx2:
                idx2 = random.randint(0, self.num_classes - 1)
            image1 = random.choice(self.datas[idx1])
            image2 = random.choice(self.datas[idx2])
        return image1 + 0.1 * torch.randn(8), image2, torch.from_numpy(np.array([label], dtype=np.float32))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())
        self.out = nn.Linear(8, 1)

    def forward(self, x1, x2):
        return self.out(torch.abs(self.linear(x1) - self.linear(x2)))


if __name__ == "__main__":
    torch.manual_seed(0)
    trainSet = OmniglotTrain()
    testLoader = DataLoader(torch.utils.data.TensorDataset(torch.randn(20, 8), torch.randn(20, 8)), batch_size=5)
    trainLoader = DataLoader(trainSet, batch_size=4, shuffle=False)
    loss_fn = torch.nn.BCEWithLogitsLoss()
    run = elastic.join()
    net = Siamese()
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.006)
    optimizer.zero_grad()
    net, optimizer, trainLoader = run.prepare(net, optimizer, trainLoader)
    train_loss = []
    loss_val = 0
    time_start = time.time()
    queue = deque(maxlen=20)
    for epoch in run.epochs(1):
        for batch_id, (img1, img2, label) in enumerate(trainLoader, 1):
            if batch_id > max_iter:
                break
            optimizer.zero_grad()
            output = net.forward(img1, img2)
            loss = loss_fn(output, label)
            loss_val += loss.item()
            loss.backward()
            optimizer.step()
            if batch_id % show_every == 0:
                print("[%d] loss: %.5f time: %.2f s" % (batch_id, loss_val / show_every, time.time() - time_start))
                loss_val = 0
                time_start = time.time()
            if batch_id % save_every == 0:
                run.save(net.state_dict(), "model-inter-" + str(batch_id + 1) + ".pt")
            if batch_id % test_every == 0:
                right, error = 0, 0
                for _, (test1, test2) in enumerate(testLoader, 1):
                    if np.argmax(net.forward(test1, test2).data.cpu().numpy()) == 0:
                        right += 1
                    else:
                        error += 1
                print("[%d] Test set correct: %d error: %d" % (batch_id, right, error))
                queue.append(right * 1.0 / (right + error))
            train_loss.append(loss_val)
    acc = 0.0
    for d in queue:
        acc += d
    print("final accuracy: ", acc / 20)
    run.save(net.state_dict(), "model.pt")
