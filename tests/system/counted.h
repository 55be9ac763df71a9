#pragma once

/// What a thread allocates and locks while it asks for it: a program that links counted.cc counts itself.
struct Counted {
  bool on = false;
  int allocations = 0;
  int locks = 0;
  const void* last_lock = nullptr;       ///< The one taken last, counted or not.
  const void* uncounted_lock = nullptr;  ///< Somebody else's: of a device that a test plays.
};
extern thread_local Counted counted;
