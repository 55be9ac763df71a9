#include "device/wake_signal.h"

namespace weightcast::device {

Result<std::shared_ptr<WakeSignal>> WakeSignal::Create() {
  auto signal = std::make_shared<WakeSignal>();
  WC_ASSIGN_OR_RETURN(signal->wake_, WakeFd::Create());
  return signal;
}

void WakeSignal::Disarm() {
  armed_.store(false, std::memory_order_relaxed);
  // A wake-up that comes after this is drained by the next.
  if (woken_.load(std::memory_order_acquire) && woken_.exchange(false)) wake_.Drain();
}

void WakeSignal::Ring() {
  // Sequentially consistent, as Arm: either this sees that it is armed, or its owner sees what is over.
  if (!armed_.load(std::memory_order_seq_cst)) return;
  wake_.Wake();
  woken_.store(true, std::memory_order_release);  // Last: whoever sees it drains what was written.
}

}  // namespace weightcast::device
