"""A Llama in real Megatron-Core on CPU: trained, and saved in torch_dist.

Five shims make it run without a GPU: cuda.synchronize, cuda.current_device, a function mode that turns "cuda" into "cpu" and tells
tensors' types as a GPU's, and the tracker of random states.
"""
import contextlib

import torch
import torch.distributed
from torch.overrides import TorchFunctionMode


class Cpu(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        result = function(*args, **kwargs)
        return result.replace("torch.", "torch.cuda.") if function is torch.Tensor.type and len(args) == 1 else result


def zero_states(optimizer, *_):
    for group in optimizer.param_groups:
        for p in group["params"]:
            optimizer.state[p].update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))


class MegatronCore:
    """A run on tp = all ranks. `shape` has the keys of a LlamaConfig. In bf16 it has masters in fp32."""

    def __init__(self, shape, length, rows, bf16=False):
        torch.cuda.synchronize = lambda *_, **__: None
        torch.cuda.current_device = lambda: torch.device("cpu")
        from megatron.core import parallel_state
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.optimizer import OptimizerConfig
        from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params, FP32Optimizer
        from megatron.core.tensor_parallel import random
        from megatron.core.transformer.transformer_config import TransformerConfig
        random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
        ranks = torch.distributed.get_world_size()
        if not parallel_state.model_parallel_is_initialized():
            parallel_state.initialize_model_parallel(ranks, 1)
        torch.manual_seed(3)
        config = TransformerConfig(
            num_layers=shape["num_hidden_layers"], hidden_size=shape["hidden_size"], num_attention_heads=shape["num_attention_heads"],
            num_query_groups=shape["num_key_value_heads"], ffn_hidden_size=shape["intermediate_size"], use_cpu_initialization=True,
            tensor_model_parallel_size=ranks, attention_dropout=0.0, hidden_dropout=0.0, gated_linear_unit=True, add_bias_linear=False,
            activation_func=torch.nn.functional.silu, normalization="RMSNorm", layernorm_epsilon=1e-6, bias_dropout_fusion=False,
            bias_activation_fusion=False, persist_layer_norm=False)
        with Cpu():
            self.model = GPTModel(config, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=rows, max_sequence_length=length,
                                  position_embedding_type="rope", share_embeddings_and_output_weights=False)
        if bf16:
            self.model.bfloat16()
        self.vocabulary = shape["vocab_size"]
        groups = [{"params": [p for p in self.model.parameters() if (p.dim() == 1) == vectors], "weight_decay": 0.0 if vectors else 0.1,
                   "wd_mult": 0.0 if vectors else 1.0} for vectors in (False, True)]
        self.adam = torch.optim.AdamW(groups, 5e-3)
        for group in self.adam.param_groups:
            group |= {"pre_wd_mult": group["wd_mult"], "pre_lr_mult": 1.0, "lr_mult": 1.0, "is_expert_parallel": False,
                      "is_decoupled_lr": False, "default_config": True}
        with Cpu():
            settings = OptimizerConfig(optimizer="adam", lr=5e-3, bf16=bf16)
            if bf16:
                self.optimizer = Float16OptimizerWithFloat16Params(self.adam, settings, None, zero_states)
            else:
                self.optimizer = FP32Optimizer(self.adam, settings, init_state_fn=zero_states)

    def step(self, tokens):
        length = tokens.shape[1] - 1
        with Cpu():
            logits = self.model(tokens[:, :-1], torch.arange(length).view(1, -1), torch.triu(torch.ones(1, 1, length, length), 1).bool())
            from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region
            logits = gather_from_tensor_model_parallel_region(logits)[..., :self.vocabulary]
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            self.adam.zero_grad()
            loss.backward()
            for p in self.model.parameters():
                if hasattr(p, "main_param"):
                    p.main_param.grad, p.grad = p.grad.float(), None
            self.adam.step()
            for p in self.model.parameters():
                if hasattr(p, "main_param"):
                    p.data.copy_(p.main_param)
        return loss

    def held(self):
        """The masters and their moments."""
        found = {}
        for name, p in self.model.named_parameters():
            main = getattr(p, "main_param", p)
            found |= {f"{name} {key}": self.adam.state[main][key].clone() for key in ("exp_avg", "exp_avg_sq")}
            found |= {f"{name} fp32": main.detach().clone(), f"{name} step": torch.as_tensor(self.adam.state[main]["step"]).float()}
        return found

    def load(self, folder):
        from megatron.core import dist_checkpointing
        with Cpu():
            sharded = self.model.sharded_state_dict()
            state = {"model": sharded, "optimizer": self.optimizer.sharded_state_dict(sharded, is_loading=True), "iteration": 0}
            state = dist_checkpointing.load(state, str(folder))
            self.model.load_state_dict(state["model"], strict=False)
            self.optimizer.load_state_dict(state["optimizer"])

    def save(self, folder):
        from megatron.core import dist_checkpointing
        if torch.distributed.get_rank() == 0:
            folder.mkdir(parents=True)
        torch.distributed.barrier()
        with Cpu():
            sharded = self.model.sharded_state_dict()
            dist_checkpointing.save({"model": sharded, "optimizer": self.optimizer.sharded_state_dict(sharded), "iteration": 3},
                                    str(folder))
