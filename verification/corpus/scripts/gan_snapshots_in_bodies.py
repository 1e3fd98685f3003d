"""netD and netG with errD, errG, fixed_noise, G_losses, img_list and iters, as in tutorials of GANs, with two named updates."""
import random

import torch
import torch.nn as nn
import torch.optim as optim

import elasticd as elastic

manualSeed = 999
random.seed(manualSeed)
torch.manual_seed(manualSeed)
nz, num_epochs, lr, beta1 = 4, 2, 0.0002, 0.5
real_label, fake_label = 1.0, 0.0
netG = nn.Sequential(nn.Linear(nz, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh())
netD = nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1), nn.Sigmoid())


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Linear") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.2)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


netG.apply(weights_init)
netD.apply(weights_init)
criterion = nn.BCELoss()
fixed_noise = torch.randn(16, nz)
optimizerD = optim.Adam(netD.parameters(), lr=lr, betas=(beta1, 0.999))
optimizerG = optim.Adam(netG.parameters(), lr=lr, betas=(beta1, 0.999))
run = elastic.join()
both = nn.ModuleDict({"G": netG, "D": netD})
both, (optimizerD, optimizerG), dataloader = run.prepare(
    both, [optimizerD, optimizerG], (torch.randn(128, 8),), batch_size=4, updates={"D": optimizerD, "G": optimizerG}
)
img_list, G_losses, D_losses = [], [], []
iters = 0
for epoch in run.epochs(num_epochs):
    for i, data in enumerate(dataloader, 0):
        b_size = data[0].size(0)
        if dataloader.update == "D":
            netD.zero_grad()
            label = torch.full((b_size,), real_label, dtype=torch.float)
            output = netD(data[0]).view(-1)
            errD_real = criterion(output, label)
            errD_real.backward()
            D_x = output.mean().item()
            noise = torch.randn(b_size, nz)
            fake = netG(noise)
            label.fill_(fake_label)
            output = netD(fake.detach()).view(-1)
            errD_fake = criterion(output, label)
            errD_fake.backward()
            D_G_z1 = output.mean().item()
            errD = errD_real + errD_fake
            optimizerD.step()
            D_losses.append(errD.item())
        else:
            netG.zero_grad()
            fake = netG(torch.randn(b_size, nz))
            label = torch.full((b_size,), real_label, dtype=torch.float)
            output = netD(fake).view(-1)
            errG = criterion(output, label)
            errG.backward()
            D_G_z2 = output.mean().item()
            optimizerG.step()
            if i % 50 == 0 and run.is_leader:
                print("[%d/%d][%d/%d]\tLoss_G: %.4f D(G(z)): %.4f" % (epoch, num_epochs, i, len(dataloader), errG.item(), D_G_z2))
            G_losses.append(errG.item())
            if iters % 8 == 0:
                with torch.no_grad():
                    fake = netG(fixed_noise).detach().cpu()
                img_list.append(fake.clone())
            iters += 1
run.save(both.state_dict(), "gan.pt")
