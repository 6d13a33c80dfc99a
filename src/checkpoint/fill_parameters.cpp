#include <algorithm>
#include <set>

#include "checkpoint/checkpoint_json.h"
#include "checkpoint/copy_weights.h"
#include "checkpoint/mismatch.h"
#include "checkpoint/weights.h"
#include "core/error.h"

namespace flowshard::checkpoint {
namespace {

// A view of a parameter and the stored rows that fill it, from `key_row` on.
struct Filling {
  std::string key;
  int64_t key_row;
  at::Tensor destination;
  std::vector<int64_t> stored_shape;  // that the tensor under `key` must have
};

// [begin, end) rows that parts cover.
using Ranges = std::vector<std::pair<int64_t, int64_t>>;

int64_t num_rows(const at::Tensor& tensor) { return tensor.dim() > 0 ? tensor.size(0) : 1; }

// How many rows `ranges` cover from the first on; -1 if one is covered twice or left out.
int64_t rows_covered(Ranges ranges) {
  std::ranges::sort(ranges);
  int64_t end = 0;
  for (const auto& [first, last] : ranges) {
    if (first != end) return -1;
    end = last;
  }
  return end;
}

at::Tensor rows_of(const at::Tensor& parameter, const TensorPart& part) {
  if (part.rows < 0) {
    check(part.row == 0 && part.key_row == 0, fmt::format("{} has rows but no number of them", part.key));
    return parameter;
  }
  check(parameter.dim() > 0 && part.row >= 0 && part.row + part.rows <= parameter.size(0),
        fmt::format("{} does not have the rows of {}", part.parameter, part.key));
  return parameter.narrow(0, part.row, part.rows);
}

// The names come from the model's code: a parameter that they do not cover once is a bug of ours.
std::vector<Filling> plan(const TensorNames& names, const std::vector<NamedTensor>& parameters) {
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : parameters) {
    check(by_name.emplace(name, tensor).second, fmt::format("two parameters are called {}", name));
  }
  std::map<std::string, Ranges> parameter_rows, key_rows;
  std::vector<Filling> fillings;
  for (const TensorPart& part : names) {
    const auto found = by_name.find(part.parameter);
    check(found != by_name.end(), fmt::format("there is no parameter {} for {}", part.parameter, part.key));
    const at::Tensor destination = rows_of(found->second, part);
    const int64_t rows = num_rows(destination);
    parameter_rows[part.parameter].emplace_back(part.row, part.row + rows);
    key_rows[part.key].emplace_back(part.key_row, part.key_row + rows);
    fillings.push_back({part.key, part.key_row, destination, destination.sizes().vec()});
  }
  for (const auto& [name, parameter] : by_name) {
    check(parameter_rows.contains(name) && rows_covered(parameter_rows[name]) == num_rows(parameter),
          fmt::format("the parts of {} do not cover its rows once", name));
  }
  for (Filling& filling : fillings) {
    const int64_t rows = rows_covered(key_rows[filling.key]);
    check(rows >= 0, fmt::format("the parts of {} do not use its rows once", filling.key));
    if (!filling.stored_shape.empty()) filling.stored_shape[0] = rows;
  }
  return fillings;
}

std::vector<int64_t> without_ones(at::IntArrayRef shape) {
  std::vector<int64_t> sizes = shape.vec();
  std::erase(sizes, 1);
  return sizes;
}

bool fits(const TensorInfo& stored, const Filling& wanted) {
  // Numbers of another kind (int8 of a quantized file) mean something that a plain copy would lose.
  return without_ones(stored.shape) == without_ones(wanted.stored_shape) &&
         at::isFloatingType(stored.dtype) == at::isFloatingType(wanted.destination.scalar_type());
}

bool scale_fits(const TensorInfo& scale, const Filling& weight) {
  const int64_t numel = c10::multiply_integers(scale.shape);
  return at::isFloatingType(scale.dtype) &&
         (numel == 1 || (!weight.stored_shape.empty() && numel == weight.stored_shape[0] &&
                         without_ones(scale.shape).size() == 1));
}

std::vector<WeightCopy> copies_of(const std::vector<Filling>& fillings, const Weights& weights) {
  std::vector<WeightCopy> copies;
  for (const auto& [key, key_row, destination, stored_shape] : fillings) {
    if (destination.is_meta()) continue;
    const int64_t rows = num_rows(destination);
    const auto rows_from_key = [&](const at::Tensor& tensor) {
      return tensor.numel() > 1 ? tensor.narrow(0, key_row, rows) : tensor;
    };
    WeightCopy copy{
        .stored = weights.tensor(key).reshape(stored_shape), .scale = {}, .destination = destination};
    if (const std::string scale = scale_key(weights, key); !scale.empty()) {
      copy.scale = rows_from_key(weights.tensor(scale).flatten());
    }
    if (stored_shape.empty()) {
      copy.stored = copy.stored.unsqueeze(0);
      copy.destination = copy.destination.unsqueeze(0);
    } else {
      copy.stored = copy.stored.narrow(0, key_row, rows);
    }
    copies.push_back(std::move(copy));
  }
  return copies;
}

}  // namespace

void fill_parameters(const Weights& weights, const TensorNames& names,
                     const std::vector<NamedTensor>& parameters,
                     const std::vector<std::string>& ignored_keys) {
  const std::vector<Filling> fillings = plan(names, parameters);
  check_scales(weights);
  std::set<std::string> expected(ignored_keys.begin(), ignored_keys.end()), faulty;
  Mismatch mismatch;
  for (const Filling& filling : fillings) {
    const std::string& key = filling.key;
    expected.insert(key);
    const std::string scale = scale_key(weights, key);
    if (weights.contains(key) && fits(weights.info(key), filling) &&
        (scale.empty() || scale_fits(weights.info(scale), filling))) {
      continue;
    }
    if (!faulty.insert(key).second) continue;  // another part of the same tensor
    if (!weights.contains(key)) {
      mismatch.missing.push_back(key);
      continue;
    }
    const std::string& at_fault = fits(weights.info(key), filling) ? scale : key;
    const TensorInfo& info = weights.info(at_fault);
    mismatch.misshapen.push_back(fmt::format("{}: {} [{}], the model has {} [{}]", in_quotes(at_fault),
                                             at::toString(info.dtype), fmt::join(info.shape, ", "),
                                             at::toString(filling.destination.scalar_type()),
                                             fmt::join(filling.stored_shape, ", ")));
  }
  for (const std::string& key : weights.keys()) {
    if (!expected.contains(key) && !is_quantization_key(key)) mismatch.unexpected.push_back(key);
  }
  mismatch.throw_if_any(weights.source());

  copy_weights(copies_of(fillings, weights));
}

}  // namespace flowshard::checkpoint
