"""Trains a tiny Llama with DeepSpeed, 20 steps in bf16 at ZeRO 2, and knows nothing of ds_reshard.

    deepspeed --num_gpus 4 train.py loop out.csv --save checkpoints       the whole run, with a save after step 10
    deepspeed --num_gpus 3 train.py loop out.csv --load checkpoints3      steps 11 to 20
    deepspeed --num_gpus 4 train.py trainer out.csv --save trainer        the same by Hugging Face's Trainer
    deepspeed --num_gpus 3 train.py trainer out.csv --load trainer3/checkpoint-10

Rank 0 writes the losses of the steps to out.csv.
"""
import argparse

import deepspeed
import torch
import torch.distributed
import transformers

STEPS, SAVED_AFTER, BATCH, SEQUENCE, VOCABULARY, RATE = 20, 10, 12, 16, 32, 2e-2


class Sequences(torch.utils.data.Dataset):
    """A token x is followed by 3 x + 1, modulo the vocabulary."""

    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, index):
        tokens = [(7 * index + index // 5) % VOCABULARY]
        while len(tokens) < SEQUENCE:
            tokens.append((3 * tokens[-1] + 1) % VOCABULARY)
        return {"input_ids": torch.tensor(tokens), "labels": torch.tensor(tokens)}


def make_model():
    torch.manual_seed(1234)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=12, intermediate_size=17, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=SEQUENCE, tie_word_embeddings=True, initializer_range=0.1))


def make_config():
    """For any number of ranks that divides the global batch."""
    return {"train_batch_size": BATCH, "gradient_clipping": 1.0, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}


def loop(load, save):
    """DeepSpeed's engine, with a loop of our own."""
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model, data = make_model(), Sequences()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.1},
                                   {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0}], lr=RATE)
    schedule = {"type": "WarmupDecayLR", "params": {"total_num_steps": STEPS, "warmup_max_lr": RATE, "warmup_num_steps": 4}}
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=make_config() | {"scheduler": schedule})
    if load:
        engine.load_checkpoint(load)
    losses = {}
    while engine.global_steps < STEPS:
        first = BATCH * engine.global_steps
        batch = torch.utils.data.default_collate([data[i] for i in range(first + rank, first + BATCH, size)])
        loss = engine(**{name: tensor.to(engine.device) for name, tensor in batch.items()}).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().float()
        torch.distributed.all_reduce(mean)
        losses[engine.global_steps] = mean.item() / size
        if save and engine.global_steps == SAVED_AFTER:
            engine.save_checkpoint(save)
    return losses


def trainer(load, save):
    """Hugging Face's Trainer, with its own schedule, order of samples and files."""
    gpu = torch.cuda.is_available()
    arguments = transformers.TrainingArguments(
        output_dir=save or load, deepspeed=make_config(), bf16=True, max_steps=STEPS, save_steps=SAVED_AFTER,
        save_strategy="steps" if save else "no", per_device_train_batch_size=BATCH // torch.distributed.get_world_size(),
        learning_rate=RATE, warmup_steps=4, weight_decay=0.1, logging_steps=1, report_to=[], disable_tqdm=True, seed=1234,
        use_cpu=not gpu, ddp_backend=None if gpu else "gloo", dataloader_pin_memory=gpu)
    run = transformers.Trainer(make_model(), arguments, train_dataset=Sequences())
    run.train(resume_from_checkpoint=load)
    done = SAVED_AFTER if load else 0
    return {log["step"]: log["loss"] for log in run.state.log_history if "loss" in log and log["step"] > done}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("loop", "trainer"))
    parser.add_argument("losses")
    parser.add_argument("--load")
    parser.add_argument("--save")
    parser.add_argument("--local_rank", help="deepspeed gives it")
    args = parser.parse_args()
    deepspeed.init_distributed()
    losses = {"loop": loop, "trainer": trainer}[args.how](args.load, args.save)
    if torch.distributed.get_rank() == 0:
        with open(args.losses, "w") as file:
            file.write("iteration,consumed_samples,lm_loss\n")
            file.writelines(f"{step},{step * BATCH},{loss:.9g}\n" for step, loss in losses.items())


if __name__ == "__main__":
    main()
