#pragma once

namespace det {

// nullptr when this machine has the instructions that the library is compiled to, otherwise which is missing.
const char *missing_instructions();

}  // namespace det
