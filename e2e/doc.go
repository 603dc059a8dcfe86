// Package e2e tells stories about the whole program: the built binary, the
// stock nats command line and the sqlite3 shell, real processes that are
// killed, stopped and started again. Its tests need the build tag e2e and these
// tools; one that is missing is a failure and not a skip.
//
//	make e2e
package e2e
