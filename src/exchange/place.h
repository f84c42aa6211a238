/// Where an array lies, before a call is made of it.
#pragma once

#include "exchange/python.h"

namespace interop::exchange {

struct Place {
  int gpu = -1;                 ///< whose memory it is, managed memory included; -1 for the host
  bool is_pinned = false;       ///< of the host, and a GPU reads and writes it where it is; see `ask_driver`
  bool is_ours = false;         ///< memory of an `interop.Array` itself, whose NumPy views wait for the work on it
  const void* plain = nullptr;  ///< memory that the array's library calls the CPU's, and that may be pinned

  /// Finds out whether `plain` memory is pinned: torch's exchange API calls pinned memory the CPU's, and so does NumPy.
  /// Not asked for copies on the host, which a forked child makes, too, in which the driver does not work.
  void ask_driver();
};

/// Throws TypeError, naming the argument, for what is no array, and what its route throws of one that is no operand.
Place find_place(nb::handle array, const char* function, const char* name);

}  // namespace interop::exchange
