/* Transforms do nothing and need no workspace. */
#include <stddef.h>

int standin_cufftCreate(int *plan) {
    static int last;
    *plan = __sync_add_and_fetch(&last, 1);
    return 0;
}
int standin_cufftXtMakePlanMany(int plan, int rank, long long *n, long long *in_embed, long long in_stride,
                                long long in_distance, int in_type, long long *out_embed, long long out_stride,
                                long long out_distance, int out_type, long long batch, size_t *workspace, int type) {
    *workspace = 0;
    return 0;
}
