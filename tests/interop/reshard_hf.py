"""A small Llama with LoRA on frozen weights, trained by Hugging Face's Trainer and by accelerate's own loop. Each saves after
three steps of six."""
import os

import torch
import torch.distributed
import transformers
from torch.utils.data import DataLoader, Dataset

import accelerate
import peft

STEPS, SAVED_AFTER, BATCH, SEQUENCE, VOCABULARY = 6, 3, 12, 8, 61


class Tokens(Dataset):
    def __len__(self):
        return STEPS * BATCH

    def __getitem__(self, i):
        tokens = torch.randint(VOCABULARY, (SEQUENCE,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": tokens, "labels": tokens}


def llama():
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=SEQUENCE, tie_word_embeddings=True, initializer_range=0.3)
    lora = peft.LoraConfig(r=3, lora_alpha=6, lora_dropout=0.0, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(transformers.LlamaForCausalLM(config), lora)


def config(stage):
    size = torch.distributed.get_world_size()
    return {"train_micro_batch_size_per_gpu": BATCH // size, "train_batch_size": BATCH, "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}


class Recorder(transformers.TrainerCallback):
    def __init__(self):
        self.losses = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.losses.append(logs["loss"])


def with_trainer(folder, stage, resume=None):
    """The losses of the steps from the first or, with `resume`, from that checkpoint on."""
    reset()
    recorder = Recorder()
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), deepspeed=config(stage), max_steps=STEPS, save_steps=SAVED_AFTER, logging_steps=1,
        per_device_train_batch_size=BATCH // torch.distributed.get_world_size(), learning_rate=3e-2, warmup_steps=2,
        weight_decay=0.1, report_to=[], accelerator_config={"use_configured_state": True}, disable_tqdm=True,
        dataloader_pin_memory=False, seed=11)
    trainer = transformers.Trainer(llama(), arguments, train_dataset=Tokens(), callbacks=[recorder])
    trainer.train(resume_from_checkpoint=resume and str(resume))
    return recorder.losses


def with_accelerate(folder, stage, resume=None):
    reset()
    plugin = accelerate.DeepSpeedPlugin(hf_ds_config=config(stage))
    # Else the scheduler steps once for each rank, and rates depend on how many there are.
    accelerator = accelerate.Accelerator(deepspeed_plugin=plugin, step_scheduler_with_optimizer=False)
    model = llama()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = DataLoader(Tokens(), batch_size=BATCH // torch.distributed.get_world_size(), shuffle=False)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    losses, first = [], 0
    if resume:
        accelerator.load_state(str(resume))
        first = SAVED_AFTER
    for step, batch in enumerate(loader):
        if step < first:
            continue
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach().double(), "mean").item())
        if step + 1 == SAVED_AFTER and not resume:
            accelerator.save_state(str(folder))
    return losses


def reset():
    """Forgets the accelerator before. Without a GPU, the next has several ranks only if the backend is named."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    accelerate.PartialState(backend="gloo")
