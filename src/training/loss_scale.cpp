#include "training/loss_scale.h"

namespace flowshard::training {

bool LossScale::back_off() {
  clean_steps_ = 0;
  if (factor_ <= 1) return false;
  factor_ /= 2;
  return true;
}

void LossScale::step_was_clean() {
  if (!needed_ || ++clean_steps_ < kGrowthInterval) return;
  clean_steps_ = 0;
  if (factor_ < kLargest) factor_ *= 2;
}

void LossScale::restore(double factor, int64_t clean_steps) {
  if (!needed_) return;
  factor_ = factor;
  clean_steps_ = clean_steps;
}

}  // namespace flowshard::training
