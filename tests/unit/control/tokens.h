#pragma once

namespace weightcast::control {

inline constexpr const char* kFirstToken = "91f2c5d08b3a47e6a1d90c4be8f37265";
inline constexpr const char* kSecondToken = "0b7de44a92c8135f6e01ab39d7f2885c";
inline constexpr const char* kThirdToken = "c4f1a97e2b05d8631f7e90a2b4c6d8e0";

}  // namespace weightcast::control
