// CPU kernels that allocate their results and compute nothing, for host_time.py. What remains of a step's time is the
// work of the host: Python, autograd, dispatch and allocation.
//
// Attention kernels are boxed, because their arguments differ between versions of torch.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/native_dropout.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

namespace {

using at::Tensor;
using c10::IValue;
using c10::OperatorHandle;
using c10::Stack;

Tensor matrix(const Tensor& like, int64_t rows, int64_t columns) {
  return at::empty({rows, columns}, like.options());
}

Tensor addmm(
    const Tensor& bias, const Tensor& left, const Tensor& right, const at::Scalar& beta, const at::Scalar& alpha) {
  return matrix(left, left.size(0), right.size(1));
}

Tensor mm(const Tensor& left, const Tensor& right) {
  return matrix(left, left.size(0), right.size(1));
}

std::tuple<Tensor, Tensor, Tensor> layer_norm(
    const Tensor& input, at::IntArrayRef shape, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
    double eps) {
  auto rows = input.numel() / input.size(-1);
  return {at::empty_like(input), matrix(input, rows, 1), matrix(input, rows, 1)};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_backward(
    const Tensor& grad, const Tensor& input, at::IntArrayRef shape, const Tensor& mean, const Tensor& rstd,
    const std::optional<Tensor>& weight, const std::optional<Tensor>& bias, std::array<bool, 3> mask) {
  return {at::empty_like(input), at::empty_like(*weight), at::empty_like(*bias)};
}

Tensor gelu(const Tensor& input, std::string_view approximate) {
  return at::empty_like(input);
}

Tensor gelu_backward(const Tensor& grad, const Tensor& input, std::string_view approximate) {
  return at::empty_like(input);
}

std::tuple<Tensor, Tensor> native_dropout(const Tensor& input, double p, std::optional<bool> train) {
  return {at::empty_like(input), at::empty_like(input, input.options().dtype(at::kBool))};
}

// On a GPU, dropout in training is this one operation. On a CPU it would be four.
Tensor dropout(const Tensor& input, double p, bool train) {
  return p == 0 || !train ? input : std::get<0>(at::native_dropout(input, p, train));
}

// F.scaled_dot_product_attention with a fused kernel. With dropout, the CPU has none. A boolean mask becomes an additive
// one, as in torch.
Tensor attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
    bool causal, std::optional<double> scale, bool enable_gqa) {
  auto bias = mask;
  if (mask && mask->scalar_type() == at::kBool) {
    bias = at::where(mask->logical_not(), -INFINITY, at::scalar_tensor(0.0, query.options()));
  }
  return std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, bias, scale));
}

// Pops the arguments of an operator, and pushes empty tensors like those at `positions`.
std::vector<IValue> replace(const OperatorHandle& op, Stack* stack, std::initializer_list<int> positions) {
  auto count = op.schema().arguments().size();
  std::vector<IValue> arguments(stack->end() - count, stack->end());
  stack->resize(stack->size() - count);
  for (int position : positions) {
    stack->push_back(at::empty_like(arguments[position].toTensor()));
  }
  return arguments;
}

void push_numbers(Stack* stack, int count) {
  for (int i = 0; i < count; ++i) {
    stack->push_back(at::empty({1}));
  }
}

void flash(const OperatorHandle& op, Stack* stack) {
  replace(op, stack, {0});
  push_numbers(stack, 4);  // logsumexp, state of the generator, nothing, debug mask
}

void efficient(const OperatorHandle& op, Stack* stack) {
  auto arguments = replace(op, stack, {0});
  push_numbers(stack, 3);  // logsumexp, seed, offset
  stack->push_back(arguments[6]);
  stack->push_back(arguments[7]);
}

void ragged_backward(const OperatorHandle& op, Stack* stack) {
  replace(op, stack, {1, 2, 3});
  if (op.schema().returns().size() == 4) {
    push_numbers(stack, 1);  // gradient of a bias
  }
}

void padded(const OperatorHandle& op, Stack* stack) {
  replace(op, stack, {0});
  push_numbers(stack, 1);  // logsumexp
}

void padded_backward(const OperatorHandle& op, Stack* stack) {
  replace(op, stack, {1, 2, 3});
}

template <c10::BoxedKernel::BoxedKernelFunction* kernel>
torch::CppFunction boxed() {
  return torch::CppFunction::makeFromBoxedFunction<kernel>();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CPU, library) {
  library.impl("addmm", addmm);
  library.impl("mm", mm);
  library.impl("native_layer_norm", layer_norm);
  library.impl("native_layer_norm_backward", layer_norm_backward);
  library.impl("gelu", gelu);
  library.impl("gelu_backward", gelu_backward);
  library.impl("native_dropout", native_dropout);
  library.impl("_flash_attention_forward", boxed<flash>());
  library.impl("_flash_attention_backward", boxed<ragged_backward>());
  library.impl("_efficient_attention_forward", boxed<efficient>());
  library.impl("_efficient_attention_backward", boxed<ragged_backward>());
  library.impl("_scaled_dot_product_flash_attention_for_cpu", boxed<padded>());
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", boxed<padded_backward>());
}

TORCH_LIBRARY_IMPL(aten, AutogradCPU, library) {
  library.impl("dropout", dropout);
  library.impl("scaled_dot_product_attention", attention);
}
