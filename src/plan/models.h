#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/layout.h"
#include "plan/rules.h"
#include "weightcast/status.h"
#include "weightcast/tensor.h"

namespace weightcast::plan {

/// GPT-2 small under the names of its safetensors file: 148 tensors, 124,439,808 parameters (lm_head
/// is tied to wte and not in the file).
std::vector<TensorInfo> Gpt2(DType dtype);
/// Qwen2.5-0.5B likewise: 290 tensors, 494,032,768 parameters.
std::vector<TensorInfo> Qwen2_5_0_5B(DType dtype);
/// Qwen2.5-7B, whose lm_head is a tensor of its own: 339 tensors, 7,615,616,512 parameters.
std::vector<TensorInfo> Qwen2_5_7B(DType dtype);

/// The names that PresetModel knows.
std::vector<std::string> PresetNames();
/// kInvalidArgument, listing all, for any other name.
Result<std::vector<TensorInfo>> PresetModel(std::string_view name, DType dtype);

/// A model under the names that a tensor-parallel engine registers.
struct UnfusedModel {
  std::vector<TensorInfo> tensors;
  NameRules rules;  ///< How trainers' names become these.
};
/// Tensors that hold others side by side, as GPT-2's c_attn holds q, k and v, taken apart: an engine's rank
/// holds a part of each, not of the whole.
UnfusedModel Unfuse(std::span<const TensorInfo> tensors);

/// Each of `ranks` holds everything.
Result<Layout> DdpLayout(std::span<const TensorInfo> tensors, int ranks);
/// Dimension 0 of every tensor cut over `ranks` by torch.chunk's rule. Scalars lie on rank 0.
Result<Layout> FsdpLayout(std::span<const TensorInfo> tensors, int ranks);
/// Megatron's tensor parallelism inside each of `engines` engines of `ranks` ranks: by name, columns
/// (outputs) of q, k, v, gate, up, fc and the vocabulary, rows (inputs) of output and down
/// projections. What does not divide evenly, holds several side by side (see Unfuse) or has another name, is
/// replicated.
Result<Layout> TpLayout(std::span<const TensorInfo> tensors, int ranks, int engines = 1);

}  // namespace weightcast::plan
