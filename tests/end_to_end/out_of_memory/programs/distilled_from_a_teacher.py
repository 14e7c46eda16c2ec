"""A student learns from a teacher, whose forward pass keeps its graph although nobody trains it."""

import torch
from torch import nn
from torch.nn import functional

DEPTH = 12


def network(width, depth):
    layers = [nn.Linear(64, width)]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def distillation_loss(student_logits, teacher_logits, target, temperature=4.0):
    soft = functional.kl_div(
        functional.log_softmax(student_logits / temperature, dim=1),
        functional.softmax(teacher_logits / temperature, dim=1),
        reduction="batchmean",
    )
    return soft * temperature**2 + functional.cross_entropy(student_logits, target)


def train(student, teacher, optimizer, steps):
    student.train()
    teacher.eval()
    for step in range(steps):
        data = torch.randn(8192, 64, device="cuda")
        target = torch.randint(10, (8192,), device="cuda")
        teacher_logits = teacher(data)
        student_logits = student(data)
        loss = distillation_loss(student_logits, teacher_logits, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("step", step, "loss", loss.item())


student = network(128, 2).cuda()
teacher = network(512, DEPTH).cuda()
optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
train(student, teacher, optimizer, 4)
