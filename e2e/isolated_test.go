//go:build e2e

package e2e

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// isolated has the story told in namespaces of its own (mounts, and the network
// where flags say so), so that it can mount a small disk or use well-known ports
// and the machine does not notice. It reports whether the caller is inside; the
// caller outside is done when it returns. Outside root's reach it takes a user
// namespace as well; where the kernel allows neither, the story fails.
func isolated(t *testing.T, flags uintptr) bool {
	t.Helper()
	if os.Getenv(insideEnv) == t.Name() {
		// Without this a mount would show outside.
		if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
			t.Fatalf("make the mounts private: %v", err)
		}
		if flags&syscall.CLONE_NEWNET != 0 {
			loopbackUp(t)
		}
		return true
	}
	cmd := exec.Command(tool.self, "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), insideEnv+"="+t.Name(), signalboxEnv+"="+tool.signalbox)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | flags}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	t.Logf("inside:\n%s", out)
	if cmd.ProcessState == nil {
		t.Fatalf("this story needs namespaces; run it as root, or where user namespaces are allowed: %v", err)
	}
	if err != nil {
		t.Errorf("the story failed inside: %v", err)
	}
	return false
}

// loopbackUp switches on the one interface of a new network namespace.
func loopbackUp(t *testing.T) {
	t.Helper()
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(s)
	request, err := unix.NewIfreq("lo")
	if err != nil {
		t.Fatal(err)
	}
	request.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, request); err != nil {
		t.Fatalf("loopback: %v", err)
	}
}

// smallDisk mounts a file system of so many bytes that ends with the story.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := path(t, "disk")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}
