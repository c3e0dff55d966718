// Whether a scaled force contributes to the derivative of the energy with respect to its parameter.
#include "force.h"
#include "openmm/ATMForce.h"
#include "openmm/CustomAngleForce.h"
#include "openmm/CustomBondForce.h"
#include "openmm/CustomCVForce.h"
#include "openmm/CustomCentroidBondForce.h"
#include "openmm/CustomCompoundBondForce.h"
#include "openmm/CustomGBForce.h"
#include "openmm/CustomNonbondedForce.h"
#include "openmm/CustomTorsionForce.h"

using namespace OpenMM;
using std::string;

namespace torchmdx {

namespace {

template <class Kind> bool isRequested(const Force& force, const string& parameter) {
    auto* own = dynamic_cast<const Kind*>(&force);
    if (own == nullptr)
        return false;
    for (int i = 0; i < own->getNumEnergyParameterDerivatives(); i++)
        if (own->getEnergyParameterDerivativeName(i) == parameter)
            return true;
    return false;
}

template <class... Kinds> bool isRequestedOfAny(const Force& force, const string& parameter) {
    return (isRequested<Kinds>(force, parameter) || ...);
}

}  // namespace

bool contributesDerivative(ContextImpl& context, const string& parameter) {
    bool isShared = false;
    for (ForceImpl* impl : context.getForceImpls()) {
        const Force& force = impl->getOwner();
        if (auto* own = dynamic_cast<const TorchmdxForce*>(&force)) {
            if (own->derivative && own->scaleParameter == parameter)
                return true;
            continue;
        }
        if (isRequestedOfAny<ATMForce, CustomAngleForce, CustomBondForce, CustomCVForce, CustomCentroidBondForce,
                             CustomCompoundBondForce, CustomGBForce, CustomNonbondedForce, CustomTorsionForce>(force, parameter))
            return true;
        isShared = isShared || impl->getDefaultParameters().count(parameter) != 0;
    }
    return !isShared;
}

}  // namespace torchmdx
