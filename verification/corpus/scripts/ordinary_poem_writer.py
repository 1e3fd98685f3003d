"""A language model that writes a poem after every so many batches, meters kept outside, as a poem writer's train.py."""

import torch
from torch import nn, optim
from torch.utils.data import DataLoader

import elasticd as elastic


class AverageValueMeter:
    def __init__(self):
        self.reset()

    def add(self, value):
        self.sum += value
        self.n += 1

    @property
    def mean(self):
        return self.sum / self.n if self.n else float("nan")

    def reset(self):
        self.sum, self.n = 0.0, 0


class PoetryModel(nn.Module):
    def __init__(self, vocab_size, embedding_dim, hidden_dim):
        super().__init__()
        self.hidden_dim = hidden_dim
        self.embeddings = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, num_layers=2, dropout=0.1)
        self.linear = nn.Linear(hidden_dim, vocab_size)

    def forward(self, inputs, hidden=None):
        seq_len, batch_size = inputs.size()
        if hidden is None:
            h_0 = inputs.data.new(2, batch_size, self.hidden_dim).fill_(0).float()
            c_0 = inputs.data.new(2, batch_size, self.hidden_dim).fill_(0).float()
        else:
            h_0, c_0 = hidden
        output, hidden = self.lstm(self.embeddings(inputs), (h_0, c_0))
        return self.linear(output.view(seq_len * batch_size, -1)), hidden


def generate(model, start_words):
    result = list(start_words)
    input = torch.tensor([1]).view(1, 1).long()
    hidden = None
    model.eval()
    with torch.no_grad():
        for i in range(10):
            output, hidden = model(input, hidden)
            if i < len(start_words):
                w = result[i]
            else:
                w = output.data[0].topk(1)[1][0].item()
                result.append(w)
            input = input.data.new([w]).view(1, 1)
    return result


def train():
    torch.manual_seed(0)
    data = torch.randint(2, 20, (128, 10))
    dataLoader = DataLoader(data, batch_size=4, shuffle=True)
    run = elastic.join()
    model = PoetryModel(20, embedding_dim=8, hidden_dim=12)
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    crierion = nn.CrossEntropyLoss()
    loss_meter = AverageValueMeter()
    top1 = AverageValueMeter()
    train_loss_list = []
    train_accuracy_list = []
    model, optimizer, dataLoader = run.prepare(model, optimizer, dataLoader)
    for epoch in run.epochs(4):
        loss_meter.reset()
        top1.reset()
        for ii, data_ in enumerate(dataLoader):
            data_ = data_.long().transpose(1, 0).contiguous()
            inputs, labels = data_[:-1, :], data_[1:, :]
            optimizer.zero_grad()
            output, _ = model(inputs)
            loss = crierion(output, labels.reshape(-1))
            loss.backward()
            optimizer.step()
            loss_meter.add(loss.item())
            prec1 = (output.argmax(1) == labels.reshape(-1)).float().sum()
            top1.add(prec1.item())
            if (1 + ii) % 4 == 0:
                print("generate", " ".join(str(word) for word in generate(model, [3, 4, 5])))
        train_loss_list.append(loss.item())
        train_accuracy_list.append(100 * prec1.item() / output.size(0))
        print("train %d epoch loss: %.3f acc: %.3f " % (epoch + 1, loss_meter.mean, 100 * top1.mean / output.size(0)))
        scheduler.step()
    run.save(model.state_dict(), "poem_%s.pt" % epoch)


if __name__ == "__main__":
    train()
