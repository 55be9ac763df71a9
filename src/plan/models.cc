#include "plan/models.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/strings.h"
#include "plan/layout_builder.h"

namespace weightcast::plan {
namespace {

/// Appends tensors of one dtype.
class ModelWriter {
 public:
  explicit ModelWriter(DType dtype) : dtype_(dtype) {}
  void Add(std::string name, Shape shape) { tensors_.push_back({std::move(name), dtype_, std::move(shape)}); }
  /// `stem`.weight and, with one entry per output, `stem`.bias.
  void AddWithBias(const std::string& stem, Shape weight, int64_t outputs) {
    Add(stem + ".weight", std::move(weight));
    Add(stem + ".bias", {outputs});
  }
  std::vector<TensorInfo> Take() { return std::move(tensors_); }

 private:
  DType dtype_;
  std::vector<TensorInfo> tensors_;
};

struct QwenSizes {
  int layers;
  int64_t width;
  int64_t keys;  ///< Of all key-value heads together.
  int64_t inner;
  int64_t words;
  bool tied;
};

std::vector<TensorInfo> Qwen2_5(DType dtype, const QwenSizes& sizes) {
  ModelWriter model(dtype);
  model.Add("model.embed_tokens.weight", {sizes.words, sizes.width});
  for (int layer = 0; layer < sizes.layers; ++layer) {
    const std::string stem = StrCat("model.layers.", layer, ".");
    model.Add(stem + "input_layernorm.weight", {sizes.width});
    model.AddWithBias(stem + "self_attn.q_proj", {sizes.width, sizes.width}, sizes.width);
    model.AddWithBias(stem + "self_attn.k_proj", {sizes.keys, sizes.width}, sizes.keys);
    model.AddWithBias(stem + "self_attn.v_proj", {sizes.keys, sizes.width}, sizes.keys);
    model.Add(stem + "self_attn.o_proj.weight", {sizes.width, sizes.width});
    model.Add(stem + "post_attention_layernorm.weight", {sizes.width});
    model.Add(stem + "mlp.gate_proj.weight", {sizes.inner, sizes.width});
    model.Add(stem + "mlp.up_proj.weight", {sizes.inner, sizes.width});
    model.Add(stem + "mlp.down_proj.weight", {sizes.width, sizes.inner});
  }
  model.Add("model.norm.weight", {sizes.width});
  if (!sizes.tied) model.Add("lm_head.weight", {sizes.words, sizes.width});
  return model.Take();
}

using MakeModel = std::vector<TensorInfo> (*)(DType);
constexpr std::pair<std::string_view, MakeModel> kPresets[] = {
    {"gpt2", Gpt2}, {"qwen2.5-0.5b", Qwen2_5_0_5B}, {"qwen2.5-7b", Qwen2_5_7B}};

}  // namespace

std::vector<TensorInfo> Gpt2(DType dtype) {
  // https://huggingface.co/openai-community/gpt2: n_embd 768, n_layer 12, vocabulary 50,257, context
  // 1,024. Its linear layers are Conv1D: [inputs, outputs].
  constexpr int64_t kWidth = 768;
  ModelWriter model(dtype);
  model.Add("wte.weight", {50257, kWidth});
  model.Add("wpe.weight", {1024, kWidth});
  for (int layer = 0; layer < 12; ++layer) {
    const std::string stem = StrCat("h.", layer, ".");
    model.AddWithBias(stem + "ln_1", {kWidth}, kWidth);
    model.AddWithBias(stem + "attn.c_attn", {kWidth, 3 * kWidth}, 3 * kWidth);
    model.AddWithBias(stem + "attn.c_proj", {kWidth, kWidth}, kWidth);
    model.AddWithBias(stem + "ln_2", {kWidth}, kWidth);
    model.AddWithBias(stem + "mlp.c_fc", {kWidth, 4 * kWidth}, 4 * kWidth);
    model.AddWithBias(stem + "mlp.c_proj", {4 * kWidth, kWidth}, kWidth);
  }
  model.AddWithBias("ln_f", {kWidth}, kWidth);
  return model.Take();
}

// https://huggingface.co/Qwen/Qwen2.5-0.5B: 14 heads and 2 key-value heads of 64, tied embeddings.
std::vector<TensorInfo> Qwen2_5_0_5B(DType dtype) {
  return Qwen2_5(dtype,
                 {.layers = 24, .width = 896, .keys = 2 * 64, .inner = 4864, .words = 151936, .tied = true});
}

// https://huggingface.co/Qwen/Qwen2.5-7B: 28 heads and 4 key-value heads of 128.
std::vector<TensorInfo> Qwen2_5_7B(DType dtype) {
  return Qwen2_5(
      dtype, {.layers = 28, .width = 3584, .keys = 4 * 128, .inner = 18944, .words = 152064, .tied = false});
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const auto& [name, make] : kPresets) names.emplace_back(name);
  return names;
}

Result<std::vector<TensorInfo>> PresetModel(std::string_view name, DType dtype) {
  for (const auto& [preset, make] : kPresets)
    if (name == preset) return make(dtype);
  return Error(Code::kInvalidArgument, "no preset model is named '", name, "'; give one of ",
               Join(PresetNames(), ", "));
}

UnfusedModel Unfuse(std::span<const TensorInfo> tensors) {
  // GPT-2's is [inputs, 3 * inputs]: equal parts of its last dimension.
  UnfusedModel model;
  for (const auto& [kind, dim] : {std::pair{"weight", 1}, std::pair{"bias", 0}}) {
    Split split{.from = StrCat("{**}.c_attn.", kind), .to = {}, .dim = dim};
    for (const char part : {'q', 'k', 'v'})
      split.to.push_back(StrCat("{**}.c_attn_", std::string(1, part), ".", kind));
    model.rules.rules.emplace_back(std::move(split));
  }
  for (const TensorInfo& tensor : tensors) {
    const auto split = [&](const Rule& rule) {
      return MatchName(std::get<Split>(rule).from, tensor.name).has_value();
    };
    const auto rule = std::find_if(model.rules.rules.begin(), model.rules.rules.end(), split);
    if (rule == model.rules.rules.end()) {
      model.tensors.push_back(tensor);
      continue;
    }
    for (const std::string& name : std::get<Split>(*rule).to) {
      TensorInfo part{ExpandName(name, *MatchName(std::get<Split>(*rule).from, tensor.name)), tensor.dtype,
                      tensor.shape};
      part.shape.back() /= 3;
      model.tensors.push_back(std::move(part));
    }
  }
  return model;
}

namespace {

template <typename PatternOf>
Result<Layout> LayoutByPattern(std::span<const TensorInfo> tensors, int ranks, PatternOf pattern_of) {
  LayoutBuilder builder(ranks);
  for (const TensorInfo& tensor : tensors) WC_RETURN_IF_ERROR(builder.AddPattern(tensor, pattern_of(tensor)));
  return builder.Build();
}

/// What tensor parallelism does to a linear layer: cuts its outputs or its inputs.
enum class CutAlong { kOutputs, kInputs };

struct LayerRow {
  std::string_view layer;  ///< The part of the name before ".weight" or ".bias".
  CutAlong cut;
  bool inputs_first;  ///< GPT-2's Conv1D holds [inputs, outputs], everyone else [outputs, inputs].
};

constexpr std::array<LayerRow, 16> kLayers = {{{"q_proj", CutAlong::kOutputs, false},
                                               {"k_proj", CutAlong::kOutputs, false},
                                               {"v_proj", CutAlong::kOutputs, false},
                                               {"gate_proj", CutAlong::kOutputs, false},
                                               {"up_proj", CutAlong::kOutputs, false},
                                               {"o_proj", CutAlong::kInputs, false},
                                               {"down_proj", CutAlong::kInputs, false},
                                               {"embed_tokens", CutAlong::kOutputs, false},
                                               {"lm_head", CutAlong::kOutputs, false},
                                               {"wte", CutAlong::kOutputs, false},
                                               {"c_attn_q", CutAlong::kOutputs, true},
                                               {"c_attn_k", CutAlong::kOutputs, true},
                                               {"c_attn_v", CutAlong::kOutputs, true},
                                               {"c_fc", CutAlong::kOutputs, true},
                                               {"c_proj", CutAlong::kInputs, true},
                                               {"fc1", CutAlong::kOutputs, false}}};

/// The dimension of a tensor that tensor parallelism cuts, or kReplicate.
int TensorParallelDim(const TensorInfo& tensor) {
  const std::string_view name = tensor.name;
  const size_t last = name.rfind('.');
  if (last == std::string_view::npos) return kReplicate;
  const std::string_view stem = name.substr(0, last);
  const std::string_view layer = stem.substr(stem.rfind('.') + 1);  // npos + 1 is 0.
  const auto row = std::ranges::find(kLayers, layer, &LayerRow::layer);
  if (row == kLayers.end()) return kReplicate;
  // A bias belongs to the outputs; where the inputs are cut, every rank adds or skips it whole.
  if (tensor.shape.size() == 1) return row->cut == CutAlong::kOutputs ? 0 : kReplicate;
  if (tensor.shape.size() != 2) return kReplicate;
  return (row->cut == CutAlong::kOutputs) == row->inputs_first ? 1 : 0;
}

}  // namespace

Result<Layout> DdpLayout(std::span<const TensorInfo> tensors, int ranks) {
  const Pattern pattern{.mesh = {{.size = ranks}}};
  return LayoutByPattern(tensors, ranks, [&](const TensorInfo&) { return pattern; });
}

Result<Layout> FsdpLayout(std::span<const TensorInfo> tensors, int ranks) {
  const Pattern sharded{.mesh = {{.size = ranks, .shard_dim = 0}}};
  return LayoutByPattern(
      tensors, ranks, [&](const TensorInfo& tensor) { return tensor.shape.empty() ? Pattern{} : sharded; });
}

Result<Layout> TpLayout(std::span<const TensorInfo> tensors, int ranks, int engines) {
  const auto pattern_of = [&](const TensorInfo& tensor) {
    const int dim = TensorParallelDim(tensor);
    const bool even = dim != kReplicate && ranks > 0 && tensor.shape[static_cast<size_t>(dim)] % ranks == 0;
    return Pattern{.mesh = {{.size = ranks, .shard_dim = even ? dim : kReplicate}}};
  };
  WC_ASSIGN_OR_RETURN(Layout engine, LayoutByPattern(tensors, ranks, pattern_of));
  if (engines < 1)
    return Error(Code::kInvalidArgument, "the number of engines is ", engines,
                 "; it must be an integer of at least 1");
  if (engines > kMaxRanks / ranks)
    return Error(Code::kInvalidArgument, engines, " engines of ", ranks, " ranks each; give at most ",
                 kMaxRanks, " ranks together");
  return JoinEngines(std::vector<Layout>(static_cast<size_t>(engines), engine));
}

}  // namespace weightcast::plan
