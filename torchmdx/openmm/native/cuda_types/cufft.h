#pragma once
typedef int cufftHandle;
