// main() of the tests on a machine without GoogleTest (scripts/cuda-test).
#include "tests/core/cuda/test_framework.h"

int main() { return bare::Main(); }
