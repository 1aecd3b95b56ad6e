"""A Llama in real Megatron-FSDP on CPU: trained, and saved in fsdp_dtensor, by the steps of Megatron-LM's checkpointing.py.

Besides megatron_core.py's shims: streams that do nothing, meshes of the CPU, and a stand-in for a class of Transformer Engine. Two
things of megatron-core 0.16.1 need help. Its saver asks all ranks for each parameter's states, and a rank has none where it has no
elements. It looks parameters of gated units up by names that the wrapper's parameters do not have.
"""
import contextlib

import torch
import torch.distributed.checkpoint
from torch.distributed import DeviceMesh

from megatron_core import Cpu, Wrapped, distributed_optimizer, joined_states


class Idle:
    """A stream or event."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        return lambda *_: self


def on_cpu(from_group):
    return staticmethod(lambda group, device_type, *rest, **more: from_group(group, "cpu", *rest, **more))


class MegatronFsdp(Wrapped):
    def __init__(self, shape, length, tp, bf16=False):
        super().__init__(shape, length, 0, bf16, tp)

    def make_optimizer(self, bf16):
        if torch.cuda.Stream is not Idle:
            torch.cuda.Stream = torch.cuda.Event = torch.cuda.current_stream = Idle
            torch.cuda.stream = lambda _: contextlib.nullcontext()
            torch.cuda.empty_cache, torch.cuda.get_rng_state = lambda: None, torch.get_rng_state
            torch.cuda.set_rng_state = lambda _: None
            DeviceMesh.from_group = on_cpu(DeviceMesh.from_group)
        from megatron.core.distributed import DistributedDataParallelConfig
        from megatron.core.distributed.fsdp import mcore_fsdp_adapter
        mcore_fsdp_adapter.TELinear = Idle
        self.shapes = {name: p.shape for name, p in self.model.named_parameters()}
        self.config.gradient_accumulation_fusion = False
        with Cpu():
            self.wrapped = mcore_fsdp_adapter.FullyShardedDataParallel(self.config, DistributedDataParallelConfig(
                use_distributed_optimizer=True, use_megatron_fsdp=True, data_parallel_sharding_strategy="optim_grads_params",
                grad_reduce_in_fp32=True, gradient_reduce_div_fusion=False, overlap_grad_reduce=True, overlap_param_gather=True),
                self.model, device=torch.device("cpu"))
            self.optimizer = distributed_optimizer(self.wrapped, bf16)
        self.model = self.wrapped

    def named_parameters(self):
        self.wrapped.state_dict_for_save_checkpoint()  # which puts the ranks' parts in place of whole parameters
        for group in self.optimizer.param_groups:
            for p in group["params"]:
                yield self.optimizer._param_name(p).replace("module.", ""), p

    def states_of(self, p):
        shape = self.shapes[self.optimizer._param_name(p).replace("module.", "")]
        state, step = self.optimizer.optimizer.state.get(p), next(iter(self.optimizer.optimizer.state.values()))["step"]
        own = state and {"fp32": p.to_local(), **{key: state[key].to_local() for key in ("exp_avg", "exp_avg_sq")}}
        return joined_states(shape, p.megatron_fsdp_slice.start, own) | {"step": step}

    def get_parameter(self, name):
        """For the saver."""
        return self.wrapped.get_parameter("module.module." + name.replace("module.", ""))

    def save(self, folder):
        from megatron.core.distributed.fsdp.src.megatron_fsdp.uneven_dtensor import preprocess_state_dict_for_uneven_dtensor
        from megatron.core.transformer.fsdp_dtensor_checkpoint import handle_fp8_extra_state_case, handle_swiglu_in_state_dict
        inner = self.optimizer.optimizer
        held, (_, any_state) = dict(inner.state), next(iter(inner.state.items()))
        inner.state.clear()
        with Cpu():
            for _, p in self.named_parameters():
                inner.state[p] = held.get(p) or {"step": any_state["step"], "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            model = self.wrapped.state_dict_for_save_checkpoint()
            optimizer = self.optimizer.sharded_state_dict({}, metadata={"distrib_optim_sharding_type": "fsdp_dtensor"})
            handle_fp8_extra_state_case(model)
            model, optimizer = handle_swiglu_in_state_dict(self, model, optimizer)
            state = preprocess_state_dict_for_uneven_dtensor({"model": model, "optimizer": optimizer, "iteration": 3})
            torch.distributed.checkpoint.save(state, checkpoint_id=folder)
        inner.state.clear()
        inner.state.update(held)
