"""A Llama in real Megatron-Core on CPU: trained, and saved in torch_dist, with the ordinary optimizer or the distributed one.

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
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.device and str(args[0]).startswith("cuda"):
            return torch.device("cpu")
        result = function(*args, **kwargs)
        return result.replace("torch.", "torch.cuda.") if function is torch.Tensor.type and len(args) == 1 else result


def zero_states(optimizer, *_):
    for group in optimizer.param_groups:
        for p in group["params"]:
            optimizer.state[p].update(step=torch.tensor(0.0), exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))


class MegatronCore:
    """A run on tp = all ranks. `shape` has the keys of a LlamaConfig. `padding` rows follow the vocabulary. In bf16 it has masters in fp32."""

    def __init__(self, shape, length, padding=0, bf16=False, tp=None):
        torch.cuda.synchronize = lambda *_, **__: None
        torch.cuda.current_device = lambda: torch.device("cpu")
        from megatron.core import parallel_state
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.models.gpt.gpt_model import GPTModel
        from megatron.core.tensor_parallel import random
        from megatron.core.transformer.transformer_config import TransformerConfig
        random.CudaRNGStatesTracker.fork = lambda self, name="": contextlib.nullcontext()
        tp = tp or torch.distributed.get_world_size()
        if parallel_state.model_parallel_is_initialized() and parallel_state.get_tensor_model_parallel_world_size() != tp:
            parallel_state.destroy_model_parallel()
        if not parallel_state.model_parallel_is_initialized():
            parallel_state.initialize_model_parallel(tp, 1)
        torch.manual_seed(3)
        self.config = TransformerConfig(
            num_layers=shape["num_hidden_layers"], hidden_size=shape["hidden_size"], num_attention_heads=shape["num_attention_heads"],
            num_query_groups=shape["num_key_value_heads"], ffn_hidden_size=shape["intermediate_size"], use_cpu_initialization=True,
            tensor_model_parallel_size=tp, attention_dropout=0.0, hidden_dropout=0.0, gated_linear_unit=True, add_bias_linear=False,
            activation_func=torch.nn.functional.silu, normalization="RMSNorm", layernorm_epsilon=1e-6, bias_dropout_fusion=False,
            bias_activation_fusion=False, persist_layer_norm=False, bf16=bf16)
        with Cpu():
            self.model = GPTModel(self.config, get_gpt_layer_local_spec(normalization="RMSNorm"), vocab_size=shape["vocab_size"] + padding,
                                  max_sequence_length=length, position_embedding_type="rope", share_embeddings_and_output_weights=False)
        if bf16:
            self.model.bfloat16()
        self.vocabulary, self.metadata = shape["vocab_size"], {}
        self.make_optimizer(bf16)

    def make_optimizer(self, bf16):
        from megatron.core.optimizer import OptimizerConfig
        from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params, FP32Optimizer
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

    def loss(self, tokens):
        from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region
        length = tokens.shape[1] - 1
        logits = self.model(tokens[:, :-1], torch.arange(length).view(1, -1), torch.triu(torch.ones(1, 1, length, length), 1).bool())
        logits = gather_from_tensor_model_parallel_region(logits)[..., :self.vocabulary]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def step(self, tokens):
        with Cpu():
            loss = self.loss(tokens)
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

    def data_part(self):
        """The part of a global batch that this rank's step takes, and their number."""
        from megatron.core import parallel_state
        return parallel_state.get_data_parallel_rank(), parallel_state.get_data_parallel_world_size()

    def named_parameters(self):
        return self.model.named_parameters()

    def states_of(self, p):
        """The master, its moments and step."""
        main = getattr(p, "main_param", p)
        return {"fp32": main, **self.adam.state[main]}

    def held(self):
        """The masters and their moments of all tp's ranks."""
        from megatron.core import parallel_state
        found = {f"{name} {key}": torch.as_tensor(state).detach().float().clone()
                 for name, p in self.named_parameters() for key, state in self.states_of(p).items()}
        every = [None] * parallel_state.get_tensor_model_parallel_world_size()
        torch.distributed.all_gather_object(every, found, parallel_state.get_tensor_model_parallel_group())
        return {f"{rank} {name}": state for rank, own in enumerate(every) for name, state in own.items()}

    def sharded(self, is_loading):
        model = self.model.sharded_state_dict()
        return {"model": model, "optimizer": self.optimizer.sharded_state_dict(model, is_loading=is_loading, metadata=self.metadata)}

    def load(self, folder):
        from megatron.core import dist_checkpointing
        with Cpu(), torch.no_grad():
            state = dist_checkpointing.load(self.sharded(is_loading=True) | {"iteration": 0}, str(folder))
            self.model.load_state_dict(state["model"], strict=False)
            self.optimizer.load_state_dict(state["optimizer"])

    def save(self, folder):
        from megatron.core import dist_checkpointing
        if torch.distributed.get_rank() == 0:
            folder.mkdir(parents=True)
        torch.distributed.barrier()
        with Cpu():
            dist_checkpointing.save(self.sharded(is_loading=False) | {"iteration": 3}, str(folder))


class Wrapped(MegatronCore):
    """A run whose model is in a wrapper of Megatron-Core's that has and reduces its gradients."""

    def step(self, tokens):
        with Cpu():
            self.wrapped.zero_grad_buffer()
            self.optimizer.zero_grad()
            loss = self.loss(tokens)
            loss.backward()
            self.wrapped.finish_grad_sync()
            self.optimizer.step()
        return loss


class Distributed(Wrapped):
    """A run with Megatron-Core's distributed optimizer on tp x dp. `sharding` is the form in which it saves the states, its metadata's
    distrib_optim_sharding_type. With `bucket_size` there are many buckets."""

    def __init__(self, shape, length, sharding, tp, bf16=False, bucket_size=None):
        self.buckets = {"overlap_grad_reduce": True, "bucket_size": bucket_size} if bucket_size else {}
        self.sharding = {"distrib_optim_sharding_type": sharding, "chained_optim_avoid_prefix": True}
        super().__init__(shape, length, 0, bf16, tp)

    def make_optimizer(self, bf16):
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
        self.metadata = self.sharding
        with Cpu():
            self.wrapped = DistributedDataParallel(
                self.config, DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True, **self.buckets), self.model)
            (self.inner,) = distributed_optimizer(self.wrapped, bf16).chained_optimizers
        self.optimizer = self.inner

    def states_of(self, p):
        """Joins the ranges that the ranks of dp have."""
        own = self.inner.model_param_group_index_map.get(p)
        main = own and self.inner.optimizer.param_groups[own[0]]["params"][own[1]]
        begin = own and self.inner._get_model_param_range_map(p)["param"].start
        step = next(iter(self.inner.optimizer.state.values()))["step"]
        return joined_states(p.shape, begin, own and {"fp32": main, **self.inner.optimizer.state[main]}) | {"step": step}


def distributed_optimizer(wrapped, bf16):
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=5e-3, weight_decay=0.1, adam_beta2=0.999, bf16=bf16,
                                                       use_distributed_optimizer=True, clip_grad=0.0), [wrapped])
    for group in optimizer.param_groups:  # as Megatron-LM's scheduler does
        group["weight_decay"] *= group["wd_mult"]
    return optimizer


def joined_states(shape, begin, own):
    """The master and moments of a rank's parameter, of which this rank of dp has `own` from element `begin` on, or none."""
    from megatron.core import parallel_state
    found = {}
    for key in ("fp32", "exp_avg", "exp_avg_sq"):
        flat = torch.zeros(shape.numel())
        if own:
            flat[begin:][:own[key].numel()] = own[key].detach().flatten()
        torch.distributed.all_reduce(flat, group=parallel_state.get_data_parallel_group())
        found[key] = flat.view(shape)
    return found
