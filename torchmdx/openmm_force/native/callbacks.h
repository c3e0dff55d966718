// What the plugin asks of Python, as plain C function pointers. Those that take a message empty it when they succeed, and
// write the error there when they fail: a pending signal may stop Python before it writes anything, and the value that
// such a call returns is undefined.
#pragma once

struct Handles {
    unsigned long long graph, energyGraph;           // CUgraphExec; energyGraph 0: there is none
    unsigned long long positions, cell, forces;      // device, double: [n,3] Å, [3,3] Å, [n,3] eV/Å
    unsigned long long deviceFlags;                  // device, int64[8]
    unsigned long long hostEnergy, hostFlags;        // pinned host memory: double eV, int64[8]
    unsigned long long auditEvery, auditFailed;      // evaluations, 0: never; host int64, not 0 once an audit has failed
};

struct Callbacks {
    // A session for a new Context on CUDA device `device`, -1 on platforms of the CPU.
    long long (*open)(long long provider, int device, char* message, int size);
    // On a GPU, before the first evaluation and after a failed recovery: positions [n,3] Å, cell [9] Å or null; fills the
    // handles.
    int (*start)(long long session, const double* positions, const double* cell, Handles* handles, char* message, int size);
    // The flags say that the evaluation failed: does it again, from the positions in the device buffers.
    int (*recover)(long long session, int energyOnly, Handles* handles, char* message, int size);
    // Audits the evaluation whose results are in the device buffers, while the run goes on. Fails where the audit before
    // it has failed. step: of the Context.
    int (*audit)(long long session, long long evaluation, long long step, char* message, int size);
    // An evaluation on the host: energy eV, forces [n,3] eV/Å.
    int (*evaluate)(long long session, const double* positions, const double* cell, double* energy, double* forces,
                    char* message, int size);
    void (*close)(long long session);
    // A provider for what a file says of it.
    long long (*restore)(const char* reference, char* message, int size);
    // The force of a provider is gone: no session will be opened any more.
    void (*drop)(long long provider);
};

// Numbers that units.py knows: nm in Å, eV in kJ/mol, eV/Å in kJ/mol/nm.
struct Units {
    double length, energy, force;
};
