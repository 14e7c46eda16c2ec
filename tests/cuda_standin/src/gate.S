/* Every exported function comes through here on its way to what it does, with its name in r10 and the way in r11:
 * untouched as long as nothing is armed, else standin_gate decides whether the call is made or what it returns.
 * r10 and r11 carry no argument in the System V calling convention; all registers that do are kept. */
    .text
    .globl standin_enter
    .hidden standin_enter
    .type standin_enter, @function
standin_enter:
    push %rax
    mov standin_armed@GOTPCREL(%rip), %rax
    mov (%rax), %rax
    cmpl $0, (%rax)
    pop %rax
    jne 1f
    jmp *%r11
1:  push %rbp
    mov %rsp, %rbp
    sub $208, %rsp
    and $-16, %rsp
    mov %rdi, 128(%rsp)
    mov %rsi, 136(%rsp)
    mov %rdx, 144(%rsp)
    mov %rcx, 152(%rsp)
    mov %r8, 160(%rsp)
    mov %r9, 168(%rsp)
    mov %rax, 176(%rsp)
    mov %r11, 184(%rsp)
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    mov %r10, %rdi
    call standin_gate@PLT
    mov %eax, %r10d
    mov 128(%rsp), %rdi
    mov 136(%rsp), %rsi
    mov 144(%rsp), %rdx
    mov 152(%rsp), %rcx
    mov 160(%rsp), %r8
    mov 168(%rsp), %r9
    mov 176(%rsp), %rax
    mov 184(%rsp), %r11
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    mov %rbp, %rsp
    pop %rbp
    test %r10d, %r10d
    jne 2f
    jmp *%r11
2:  mov %r10d, %eax
    ret
    .section .note.GNU-stack, "", @progbits
