#include "base/strings.h"
#include "doctor/checks.h"

namespace weightcast::doctor {

void CheckQos(const Facts& facts, Findings& findings) {
  const int64_t traffic_class = TrafficClass(facts).value_or(0);
  const int64_t priority =
      traffic_class >> 5;  // The DSCP is the upper six bits, the usual priority its upper three.
  for (const QosPort& port : facts.qos.ports) {
    const bool lossless = port.pfc.find(":on") != std::string::npos;
    const bool known = !port.pfc.empty() || !port.ecn.empty();
    const std::string evidence =
        StrCat("PFC ", port.pfc.empty() ? "unknown" : port.pfc, "; ECN ",
               port.ecn.empty()  ? "unknown"
               : port.ecn == "1" ? "on"
                                 : "off",
               "; trust ", port.trust.empty() ? "unknown" : port.trust, "; forced class ",
               port.traffic_class.empty() ? "none" : port.traffic_class);
    Finding finding{.check = "congestion",
                    .subject = port.interface,
                    .text = StrCat("DSCP ", traffic_class >> 2, ", priority ", priority, "."),
                    .evidence = evidence};
    if (!known) {
      finding.text = "Neither sysfs nor dcb shows PFC and ECN of this interface.";
      findings.NotApplicable(finding);
    } else if (!lossless && port.ecn != "1") {
      finding.text =
          "RoCE has neither PFC nor ECN here: under load packets are lost, and lost packets are slow.";
      finding.remedy = StrCat("mlnx_qos -i ", port.interface,
                              " --trust dscp --pfc 0,0,0,1,0,0,0,0  # and the same on the switches");
      findings.Warn(finding);
    } else if (lossless && port.pfc.find(StrCat(priority, ":on")) == std::string::npos &&
               port.traffic_class.empty()) {
      finding.text = StrCat("PFC protects other priorities than ", priority,
                            ", which weightcast's packets have (traffic class ", traffic_class, ").");
      const size_t on = port.pfc.find(":on");
      finding.remedy = StrCat("export WEIGHTCAST_TRAFFIC_CLASS=",
                              (port.pfc[on - 1] - '0') * 32 + (port.pfc[on - 1] == '3' ? 8 : 0),
                              "  # as your switches map it; NCCL: NCCL_IB_TC");
      findings.Warn(finding);
    } else if (!port.trust.empty() && port.trust != "dscp") {
      finding.text = StrCat("The interface trusts ", port.trust, ", so the DSCP of packets is ignored.");
      finding.remedy = StrCat("mlnx_qos -i ", port.interface, " --trust dscp");
      findings.Warn(finding);
    } else {
      findings.Ok(finding);
    }
  }
  if (facts.qos.ports.empty() && !facts.missed.contains("qos"))
    return findings.NotApplicable({.check = "congestion", .text = "No RDMA over Ethernet."});
}

}  // namespace weightcast::doctor
