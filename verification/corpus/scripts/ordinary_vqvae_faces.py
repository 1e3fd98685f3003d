"""A split without a seed, logs from a progress bar's position, the best validation loss saved, as a VQ-VAE's trainer.py."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

import elasticd as elastic

BATCH_SIZE = 4
num_epochs = 4


class VQVAE(nn.Module):
    def __init__(self, num_embeddings):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)
        self.codebook = nn.Embedding(num_embeddings, 4)

    def forward(self, x):
        encoder_output = self.encoder(x)
        nearest = torch.cdist(encoder_output, self.codebook.weight).argmin(1)
        ori_quantized = self.codebook(nearest)
        quantized = encoder_output + (ori_quantized - encoder_output).detach()
        return encoder_output, quantized, ori_quantized, self.decoder(quantized)


def custom_loss_function(input, output, ori_quantized, encoder_output):
    reconstruction_loss = torch.mean((output - input) ** 2)
    quantized_loss = torch.mean((ori_quantized.detach() - encoder_output) ** 2)
    commitment_loss = torch.mean((encoder_output.detach() - ori_quantized) ** 2)
    return reconstruction_loss + quantized_loss + 0.25 * commitment_loss


faces = torch.sin(torch.arange(160 * 8).float() ** 2).view(160, 8)
dataset = TensorDataset(faces)
train_size = int(0.8 * len(dataset))
val_size = len(dataset) - train_size
train_dataset, val_dataset = torch.utils.data.random_split(dataset, [train_size, val_size])
train_dataloader = DataLoader(train_dataset, batch_size=BATCH_SIZE, shuffle=True)
val_dataloader = DataLoader(val_dataset, batch_size=BATCH_SIZE, shuffle=False)
run = elastic.join()
vqvae_model = VQVAE(num_embeddings=6)
optimizer = torch.optim.Adam(vqvae_model.parameters(), lr=2.25e-3)
vqvae_model, optimizer, train_dataloader = run.prepare(vqvae_model, optimizer, train_dataloader)
log = []

best_loss = float("inf")
for epoch in run.epochs(num_epochs):
    vqvae_model.train()
    with tqdm(train_dataloader, desc=f"Epoch {epoch + 1}/{num_epochs} - Training") as pbar:
        for (data,) in pbar:
            optimizer.zero_grad()
            encoder_output, quantized, ori_quantized, output = vqvae_model(data)
            loss = custom_loss_function(data, output, ori_quantized, encoder_output)
            reconstruction_loss = torch.mean((output - data) ** 2)
            loss.backward()
            optimizer.step()
            log.append({"train_loss": loss.item(), "train_reconstruction_loss": reconstruction_loss.item()})
            pbar.set_postfix(loss=loss.item())
            if pbar.n == len(train_dataloader) - 1:
                with torch.no_grad():
                    sample_images = (data[:8] + 1) / 2
                    log.append({"reconstructions": torch.cat([sample_images, (output[:8] + 1) / 2]).mean().item()})
    vqvae_model.eval()
    val_loss = 0
    num_batches = len(val_dataloader)
    with torch.no_grad():
        for (data,) in val_dataloader:
            encoder_output, quantized, ori_quantized, output = vqvae_model(data)
            val_loss += custom_loss_function(data, output, quantized, encoder_output).item()
    if val_loss < best_loss:
        best_loss = val_loss
        run.save(vqvae_model.state_dict(), "model_best.pt")
    val_loss /= num_batches
    print(f"Epoch {epoch + 1}/{num_epochs} - Validation Loss: {val_loss:.4f}")
