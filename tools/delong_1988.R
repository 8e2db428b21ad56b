# What pROC says of the example of DeLong, DeLong and Clarke-Pearson (1988): tests/measure/delong_1988.json.
#
# 49 patients with ovarian cancer, of whom 43 have all three tests: albumin, total protein and the K-G score.
# The numbers are those that SAS/STAT prints in "Comparing Receiver Operating Characteristic Curves"
# (PROC LOGISTIC, Example 60.8). In Debian: apt-get install --no-install-recommends r-cran-proc
#
#     Rscript tools/delong_1988.R > tests/measure/delong_1988.json

suppressMessages(library(pROC))

# albumin, total protein, K-G score as it was counted (10 - it is the score that rises), whether surgery helped
rows <- matrix(ncol = 4, byrow = TRUE, c(
  3.0, 5.8, 10, 0,  3.2, 6.3, 5, 1,  3.9, 6.8, 3, 1,  2.8, 4.8, 6, 0,  3.2, 5.8, 3, 1,  0.9, 4.0, 5, 0,
  2.5, 5.7, 8, 0,  1.6, 5.6, 5, 1,  3.8, 5.7, 5, 1,  3.7, 6.7, 6, 1,  3.2, 5.4, 4, 1,  3.8, 6.6, 6, 1,
  4.1, 6.6, 5, 1,  3.6, 5.7, 5, 1,  4.3, 7.0, 4, 1,  3.6, 6.7, 4, 0,  2.3, 4.4, 6, 1,  4.2, 7.6, 4, 0,
  4.0, 6.6, 6, 0,  3.5, 5.8, 6, 1,  3.8, 6.8, 7, 1,  3.0, 4.7, 8, 0,  4.5, 7.4, 5, 1,  3.7, 7.4, 5, 1,
  3.1, 6.6, 6, 1,  4.1, 8.2, 6, 1,  4.3, 7.0, 5, 1,  4.3, 6.5, 4, 1,  3.2, 5.1, 5, 1,  2.6, 4.7, 6, 1,
  3.3, 6.8, 6, 0,  1.7, 4.0, 7, 0,  3.7, 6.1, 5, 1,  3.3, 6.3, 7, 1,  4.2, 7.7, 6, 1,  3.5, 6.2, 5, 1,
  2.9, 5.7, 9, 0,  2.1, 4.8, 7, 1,  2.8, 6.2, 8, 0,  4.0, 7.0, 7, 1,  3.3, 5.7, 6, 1,  3.7, 6.9, 5, 1,
  3.6, 6.6, 5, 1
))
label <- rows[, 4]
scores <- list(albumin = rows[, 1], total_protein = rows[, 2], kg_score = 10 - rows[, 3])
curves <- lapply(scores, function(score) {
  roc(label, score, levels = c(0, 1), direction = "<", quiet = TRUE)
})

numbers <- function(values) paste0("[", paste(signif(values, 12), collapse = ", "), "]")
number <- function(value) format(as.numeric(value), digits = 12)

tests <- sapply(names(curves), function(name) {
  interval <- ci.auc(curves[[name]], method = "delong")
  sprintf('  "%s": {"scores": %s,\n   "auc": %s, "standard_error": %s, "low": %s, "high": %s}',
    name, numbers(scores[[name]]), number(interval[2]),
    number(sqrt(var(curves[[name]], method = "delong"))), number(interval[1]), number(interval[3]))
})
pairs <- apply(combn(names(curves), 2), 2, function(pair) {
  test <- roc.test(curves[[pair[1]]], curves[[pair[2]]], method = "delong", paired = TRUE)
  sprintf('  {"tests": ["%s", "%s"], "covariance": %s, "z": %s, "p": %s}', pair[1], pair[2],
    number(cov(curves[[pair[1]]], curves[[pair[2]]], method = "delong")),
    number(test$statistic), number(test$p.value))
})
source <- paste(
  "DeLong ER, DeLong DM, Clarke-Pearson DL. Comparing the areas under two or more correlated receiver",
  "operating characteristic curves: a nonparametric approach. Biometrics 44 (1988), 837-845"
)
cat(sprintf('{\n "source": "%s",\n "proc": "%s",\n "label": %s,\n "tests": {\n%s\n },\n "pairs": [\n%s\n ]\n}\n',
  source, as.character(packageVersion("pROC")), numbers(label),
  paste(tests, collapse = ",\n"), paste(pairs, collapse = ",\n")))
