package config

// nearest is the candidate with the smallest edit distance to word, or "" when
// none is near enough to be what was meant.
func nearest(word string, candidates []string) string {
	const longest = 100 // beyond it nothing is near, and the comparison costs
	if len(word) > longest {
		return ""
	}
	best, bestDistance := "", max(2, len(word)/4)+1
	for _, c := range candidates {
		if d := distance(word, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

// distance is the Levenshtein distance of a and b in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, above+1, row[j]+1)
			diagonal = above
		}
	}
	return row[len(b)]
}
