/// Where an array lies, before a call is made of it.
#pragma once

#include "exchange/python.h"

namespace interop::exchange {

struct Place {
  int gpu = -1;            ///< whose memory it is, managed memory included; -1 for the host
  bool is_pinned = false;  ///< of the host, and a GPU reads and writes it where it is
  bool is_ours = false;    ///< an `interop.Array`, whose readers wait for the work on it
};

/// Throws TypeError, naming the argument, for what is no array, and what its route throws of one that is no operand.
Place find_place(nb::handle array, const char* function, const char* name);

}  // namespace interop::exchange
