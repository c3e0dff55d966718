// The plugin's calls into Python, as plain C function pointers. Those with a message clear it on success, and write the
// error into it on failure. A pending signal may stop Python before it writes anything; the returned value is then
// undefined.
#pragma once

struct Handles {
    unsigned long long graph, energyGraph;           // CUgraphExec; energyGraph may be 0, for none
    unsigned long long positions, cell, forces;      // device, double: [n,3] Å, [3,3] Å, [n,3] eV/Å
    unsigned long long deviceFlags;                  // device, int64[8]
    unsigned long long hostEnergy, hostFlags;        // pinned host memory: double eV, int64[8]
    unsigned long long auditEvery, auditFailed;      // evaluations, 0: never; host int64, not 0 after a failed audit
    // The last numLinks particles of the force are outer atoms, in whose place the step has link atoms. Device: int32[n],
    // places of the inner atoms; double[n], distances in Å.
    unsigned long long numLinks, linkInner, linkDistances;
};

struct Callbacks {
    // A session for a new Context on CUDA device `device`; -1 on CPU platforms.
    long long (*open)(long long provider, int device, char* message, int size);
    // On a GPU, before the first evaluation and after a failed recovery: positions [n,3] Å, cell [9] Å or null; fills the
    // handles.
    int (*start)(long long session, const double* positions, const double* cell, Handles* handles, char* message, int size);
    // After flags were set: repeats the evaluation, with the positions in the device buffers.
    int (*recover)(long long session, int energyOnly, Handles* handles, char* message, int size);
    // Starts an audit of the results in the device buffers, while the run continues. Fails if the previous audit failed.
    // step: of the Context.
    int (*audit)(long long session, long long evaluation, long long step, char* message, int size);
    // An evaluation on the host: energy eV, forces [n,3] eV/Å or null, for the energy alone.
    int (*evaluate)(long long session, const double* positions, const double* cell, double* energy, double* forces,
                    char* message, int size);
    void (*close)(long long session);
    // A provider for the reference in a saved System.
    long long (*restore)(const char* reference, char* message, int size);
    // The force of a provider was destroyed: no further session will be opened.
    void (*drop)(long long provider);
};

// Conversion factors from units.py: nm in Å, eV in kJ/mol, eV/Å in kJ/mol/nm.
struct Units {
    double length, energy, force;
};
