"""Lightning on its way to an accelerator by itself: an autoencoder, as in its introduction."""

import argparse
import logging
import tempfile
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class LitAutoEncoder(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(28 * 28, 64), nn.ReLU(), nn.Linear(64, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 28 * 28))

    def training_step(self, batch, batch_idx):
        x, _y = batch
        x = x.view(x.size(0), -1)
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss)
        print(f"step {batch_idx} loss {loss.item():.6f}")
        return loss

    def validation_step(self, batch, batch_idx):
        x = batch[0].view(batch[0].size(0), -1)
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("val_loss", loss)
        print(f"validation {batch_idx} loss {loss.item():.6f} on {self.device}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--precision", default="32-true")
    options = parser.parse_args()
    L.seed_everything(1, verbose=False)
    data = TensorDataset(torch.rand(160, 1, 28, 28), torch.zeros(160))
    with tempfile.TemporaryDirectory() as folder:
        trainer = L.Trainer(
            accelerator="auto",
            devices=1,
            precision=options.precision,
            max_epochs=2,
            default_root_dir=folder,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            gradient_clip_val=1.0,
        )
        trainer.fit(LitAutoEncoder(), DataLoader(data, 32, shuffle=True), DataLoader(data, 32))
        found = LitAutoEncoder.load_from_checkpoint(trainer.checkpoint_callback.best_model_path, weights_only=False)
        del found
    if torch.cuda.is_available():
        print(f"peak memory: {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main()
