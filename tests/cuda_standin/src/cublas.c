/* Products do nothing. What torch reads back is the mode it has set. */

int standin_cublasGetMathMode(void *handle, int *mode) {
    *mode = 0;
    return 0;
}
int standin_cublasGetPointerMode_v2(void *handle, int *mode) {
    *mode = 0;
    return 0;
}
