#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "doctor/finding.h"
#include "peertest/check_cluster.h"
#include "peertest/cluster.h"

namespace weightcast::peertest {

/// For a terminal: a row for each host that sends, a column for each that receives; slow ones have a "!".
std::string MatrixText(const Matrix& matrix);
/// One JSON object: hosts, pairs with their facts, the matrix, findings.
std::string ClusterJson(const ClusterFacts& facts, const Matrix& matrix,
                        const std::vector<doctor::Finding>& findings, std::string_view version);
/// A page of one file, without scripts and without anything from outside. All text is escaped.
std::string ClusterHtml(const ClusterFacts& facts, const Matrix& matrix,
                        const std::vector<doctor::Finding>& findings, std::string_view version);
/// For text and attributes of HTML.
std::string EscapeHtml(std::string_view text);

}  // namespace weightcast::peertest
