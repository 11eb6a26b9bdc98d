//! The seam to event buses and to leases that span processes (PSL §1, §5).
