//go:build tools

// Package tools pins the controller of JobSet as a dependency of this wrapper module.
package tools

import (
	_ "sigs.k8s.io/jobset"
)
