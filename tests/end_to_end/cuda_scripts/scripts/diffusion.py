"""Fine-tuning of a text-to-image model, in the way of diffusers' train_text_to_image.py, with models of a few layers."""

import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from diffusers.training_utils import EMAModel
from transformers import CLIPTextConfig, CLIPTextModel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed_precision", default="no")
    args = parser.parse_args()
    accelerator = Accelerator(mixed_precision=args.mixed_precision)
    set_seed(0)
    unet = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    vae = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
    )
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=100,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=16,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    vae.requires_grad_(False)
    text_encoder.requires_grad_(False)
    unet.train()
    unet.enable_gradient_checkpointing()
    noise_scheduler = DDPMScheduler(beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear")
    ema_unet = EMAModel(unet.parameters(), model_cls=UNet2DConditionModel, model_config=unet.config)
    optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-4)
    dataset = [{"pixel_values": torch.randn(3, 16, 16), "input_ids": torch.arange(3, 19) + i} for i in range(12)]
    train_dataloader = torch.utils.data.DataLoader(dataset, batch_size=2)
    unet, optimizer, train_dataloader = accelerator.prepare(unet, optimizer, train_dataloader)
    ema_unet.to(accelerator.device)
    weight_dtype = torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32
    text_encoder.to(accelerator.device, dtype=weight_dtype)
    vae.to(accelerator.device, dtype=weight_dtype)
    for batch in train_dataloader:
        with accelerator.accumulate(unet):
            latents = (
                vae.encode(batch["pixel_values"].to(weight_dtype)).latent_dist.sample() * vae.config.scaling_factor
            )
            noise = torch.randn(latents.shape, device=latents.device, dtype=latents.dtype)
            timesteps = torch.randint(0, 1000, (latents.shape[0],), device=latents.device).long()
            noisy_latents = noise_scheduler.add_noise(latents.float(), noise.float(), timesteps).to(dtype=weight_dtype)
            encoder_hidden_states = text_encoder(batch["input_ids"], return_dict=False)[0]
            model_pred = unet(noisy_latents, timesteps, encoder_hidden_states, return_dict=False)[0]
            loss = F.mse_loss(model_pred.float(), noise.float(), reduction="mean")
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(unet.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            ema_unet.step(unet.parameters())
        print(f"loss {loss.item():.6f}")
    ema_unet.copy_to(unet.parameters())
    if accelerator.device.type == "cuda":
        print(f"peak memory: {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main()
