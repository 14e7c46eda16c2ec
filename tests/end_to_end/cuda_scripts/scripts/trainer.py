"""transformers' Trainer on a small GPT-2, as the course's notebooks have it: it asks torch for its device by itself."""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


class Tokens(torch.utils.data.Dataset):
    def __init__(self, count):
        self.tokens = torch.randint(0, 500, (count, 32), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--fp16", action="store_true")
    parser.add_argument("--gradient_checkpointing", action="store_true")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--optim", default="adamw_torch")
    options = parser.parse_args()
    set_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=64, n_embd=64, n_layer=2, n_head=4))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=8,
            num_train_epochs=1,
            logging_steps=1,
            eval_strategy="epoch",
            save_strategy="epoch",
            report_to=[],
            disable_tqdm=True,
            bf16=options.bf16,
            fp16=options.fp16,
            optim=options.optim,
            gradient_accumulation_steps=options.gradient_accumulation_steps,
            gradient_checkpointing=options.gradient_checkpointing,
        )
        trainer = Trainer(model, arguments, train_dataset=Tokens(48), eval_dataset=Tokens(16))
        trainer.train()
        print("device:", trainer.args.device, next(trainer.model.parameters()).device)
        for row in trainer.state.log_history:
            if "loss" in row or "eval_loss" in row:
                print(f"logged loss {row.get('loss', row.get('eval_loss')):.6f}")
    if torch.cuda.is_available():
        print(f"peak memory: {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main()
