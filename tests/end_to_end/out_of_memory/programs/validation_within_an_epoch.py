import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 1024), nn.GELU(), nn.Linear(1024, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss()
train = [(torch.randn(256, 64), torch.randint(0, 10, (256,))) for _ in range(6)]
held_back = [(torch.randn(4096, 64), torch.randint(0, 10, (4096,))) for _ in range(24)]

for step, (data, target) in enumerate(train):
    output = model(data.cuda())
    loss = criterion(output, target.cuda())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 3 == 2:
        total = 0.0
        for data, target in held_back:
            output = model(data.cuda())
            total += criterion(output, target.cuda())
        print(step, float(total) / len(held_back))
