/* Multilayer perceptrons. */
#include "lib/tensor/cpu/cpu.h"

void ISA_FN(mlp)(const MlpArgs *args, const Tensor *x, Tensor *saved, Tensor *y) { device_reference()->mlp(args, x, saved, y); }

void ISA_FN(mlp_backward)(const MlpArgs *args, const Tensor *x, const Tensor *saved, const Tensor *dy, const MlpGrads *grads) {
    device_reference()->mlp_backward(args, x, saved, dy, grads);
}
