"""Who may use the GPU next: deficit round robin. Pure arithmetic."""
