#pragma once

#include "det_linear.h"

namespace det {

enum class Status : int32_t {
    ok = DET_LINEAR_OK,
    no_memory = DET_LINEAR_NO_MEMORY,
    no_thread = DET_LINEAR_NO_THREAD,
    failed = DET_LINEAR_FAILED,
};

}  // namespace det
