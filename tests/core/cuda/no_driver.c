// Stands for NVIDIA's driver where a test has emulated GPUs: the loader looks whether there is one.
int tidepool_no_driver(void) { return 0; }
