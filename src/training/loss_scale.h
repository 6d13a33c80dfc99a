// The factor that keeps small gradients representable in fp16: halved when a gradient overflows, doubled
// after many steps in which none did (https://arxiv.org/abs/1710.03740, section 3.2). Always a power of two,
// so it changes no bit of a gradient that fits. The norm of the whole gradient decides, so all ranks agree.
#pragma once

#include <cstdint>

namespace flowshard::training {

class LossScale {
 public:
  static constexpr double kInitial = 65536, kLargest = 16777216;
  static constexpr int64_t kGrowthInterval = 2000;  // steps

  /// Without a need for it the factor is 1 and stays so.
  explicit LossScale(bool needed) : needed_(needed), factor_(needed ? kInitial : 1) {}

  bool needed() const { return needed_; }
  double factor() const { return factor_; }
  int64_t clean_steps() const { return clean_steps_; }  // since the factor changed last

  /// Whether a smaller factor could have avoided the overflow; then it is halved.
  bool back_off();
  void step_was_clean();
  void restore(double factor, int64_t clean_steps);

 private:
  bool needed_;
  double factor_;
  int64_t clean_steps_ = 0;
};

}  // namespace flowshard::training
